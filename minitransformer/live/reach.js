// Rows of a text, layer above layer: all that one row depends on, and the part of it that gets a gradient.
{
  compute(_, segment, memory, layers, token) {
    const start = i => Math.floor(i / segment) * segment, depends = [token], learns = [token]
    for (let layer = 0; layer < layers; layer++) {
      depends.unshift(Math.max(start(depends[0]) - memory, 0))
      learns.unshift(start(learns[0]))
    }
    let formula = 0
    for (let layer = 0; layer < layers; layer++) formula = Math.floor(formula / segment) * segment - memory
    return { depends, learns, before: start(token) - depends[0], formula: formula ? -formula : 0 }
  },
  build({ data, svg, slider, dragged, typed, say, stage }, compute) {
    const { n } = data, gap = 14, left = 22, high = 56, W = left + n * gap, X = j => left + (j + 0.5) * gap
    let token = n - 1
    const segment = slider("segment", [2, 16, 1, 8], v => v, draw), memory = slider("memory M", [0, 16, 1, 8], v => v, draw)
    const layers = slider("layers", [1, data.layers, 1, 3], v => v, draw)
    const art = svg("svg", { tabindex: 0, role: "application", style: "touch-action:pan-y;cursor:pointer",
      "aria-label": "rows of a text, layers upwards: point at a token, or choose it with the left and right arrow keys" })
    stage.append(art)
    const choose = event => {
      const box = art.getBoundingClientRect()
      token = Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - box.x) * W / box.width - left) / gap)))
      draw()
    }
    dragged(art, choose)
    typed(art, { ArrowLeft: -1, ArrowRight: 1 }, way => {
      token = Math.max(0, Math.min(n - 1, token + way))
      draw()
    })
    function draw() {
      const [size, M, L] = [segment, memory, layers].map(control => control.value), start = Math.floor(token / size) * size
      const { depends, learns, before, formula } = compute(size, M, L, token), Y = layer => 16 + (L - layer) * high
      const edges = { own: "", past: "" }
      for (let layer = 1; layer <= L; layer++) {
        for (let i = depends[layer]; i <= token; i++) {
          for (let j = Math.max(Math.floor(i / size) * size - M, 0); j <= i; j++)
            edges[j >= start ? "own" : "past"] += `M${X(j)} ${Y(layer - 1)}L${X(i)} ${Y(layer)}`
        }
      }
      art.setAttribute("viewBox", `0 0 ${W} ${L * high + 72}`)
      art.replaceChildren(
        ...[...Array(Math.ceil(n / size)).keys()].filter(k => k % 2 === 0).map(k => svg("rect", { x: left + k * size * gap, y: 2,
          width: Math.min(size, n - k * size) * gap, height: L * high + 28, fill: "currentColor", opacity: 0.06 })),
        svg("path", { d: edges.past, stroke: "var(--b)", "stroke-width": 0.7, opacity: 0.45 }),
        svg("path", { d: edges.own, stroke: "var(--a)", "stroke-width": 1.1, opacity: 0.7 }),
        ...depends.flatMap((first, layer) => [...Array(n).keys()].map(j => {
          const counts = first <= j && j <= token, own = learns[layer] <= j && j <= token
          return svg("circle", { cx: X(j), cy: Y(layer), r: own ? 4.8 : counts ? 4 : 2, "stroke-width": 1.5,
            fill: own ? "var(--a)" : counts ? "none" : "currentColor", stroke: counts && !own ? "var(--b)" : "none", opacity: counts ? undefined : 0.3 })
        })),
        svg("circle", { cx: X(token), cy: Y(L), r: 7.5, fill: "none", stroke: "var(--a)", "stroke-width": 2 }),
        ...[...Array(L + 1).keys()].map(layer => svg("text", { x: 2, y: Y(layer) + 5 }, layer)),
        ...[0, 8, 16, 24, n - 1].map(j => svg("text", { x: X(j), y: L * high + 46, "text-anchor": "middle" }, j)),
        svg("text", { x: 2, y: L * high + 66 }, "↑ layer"),
        svg("text", { x: W / 2, y: L * high + 66, "text-anchor": "middle" }, "token"))
      const own = token - start + 1, many = (k, what) => `${k} ${what}${k === 1 ? "" : "s"}`
      say(`With segments of ${size}, a memory of ${many(M, "row")} and ${many(L, "layer")}, token ${token} depends on ${many(before, "token")} before its ` +
        `segment${before ? ", red rings: constants, to which no gradient goes" : ""}. ` + (before < formula ? `In a longer text it would depend on ${formula}. ` : "") +
        `Its gradient goes to ${own === 1 ? "itself alone" : `${own} tokens of its own segment, itself among them`}, blue.`,
        { segment: size, memory: M, layers: L, token, before, formula, own })
    }
    draw()
  },
}
