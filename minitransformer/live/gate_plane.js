// A point that is dragged over the plane of both paths of a gated unit, and beside it the function that opens the gate.
{
  f(gate, a) { // its value and its slope
    const s = 1 / (1 + Math.exp(-a))
    if (gate === "sigmoid") return [s, s * (1 - s)]
    if (gate === "relu") return [Math.max(a, 0), +(a > 0)]
    if (gate === "silu") return [a * s, s + a * s * (1 - s)]
    if (gate === "none") return [a, 1]
    let term = a, sum = a // of the normal distribution's function: φ(a) (a + a³/3 + a⁵/15 + …) + ½
    for (let k = 3; Math.abs(term) > 1e-17; k += 2) sum += term *= a * a / k
    const density = Math.exp(-a * a / 2) / Math.sqrt(2 * Math.PI), below = 0.5 + density * sum
    return [a * below, below + a * density]
  },
  compute(data, gate, L, R, reach) {
    const [open, slope] = this.f(gate, L), side = [...Array(32).keys()].map(k => reach * ((k + 0.5) / 16 - 1))
    const F = side.map(l => this.f(gate, l)[0]), mean = list => list.reduce((a, b) => a + b) / list.length
    return { Y: open * R, dL: slope * R, dR: open, linear: mean(F) ** 2 / mean(F.map(x => x * x)) }
  },
  build({ data, make, svg, slider, button, dragged, typed, say, stage }, compute) {
    const W = 300, left = 34, top = 8, side = 250, tall = 180, f = this.f
    let [L, R] = data.start, gate = "sigmoid"
    const zoom = slider("L and R up to", [-2, 2, 0.5, 0], z => `±${+(2 ** z).toFixed(2)}`, () => { clip(); draw() })
    const kinds = data.gates.map(name => button({ none: "f(L) = L", sigmoid: "σ", relu: "ReLU", gelu: "GELU", silu: "SiLU" }[name],
      () => { gate = name; draw() }))
    const reach = () => 2 ** zoom.value, X = l => left + (l / reach() + 1) * side / 2, Y = r => top + (1 - r / reach()) * side / 2
    stage.style = "display:flex;flex-wrap:wrap;gap:0 1.2em"
    const size = "flex:1 1 16rem;min-width:0;max-width:24rem;"
    const sky = make("canvas", { width: 64, height: 64 }), paint = sky.getContext("2d")
    const frame = height => svg("rect", { x: left, y: top, width: side, height, fill: "none", stroke: "var(--line)" })
    const back = svg("image", { x: left, y: top, width: side, height: side, preserveAspectRatio: "none" })
    const arrow = svg("line", { stroke: "#111", "stroke-width": 3 }), tip = svg("path", { d: "M0 0L-11 5L-11 -5Z", fill: "#111" })
    const point = svg("circle", { r: 9, fill: "#fff", stroke: "#111", "stroke-width": 3 })
    const line = hue => svg("polyline", { fill: "none", stroke: hue, "stroke-width": 2.5 })
    const curve = line("var(--a)"), slope = line("var(--b)"), dots = ["a", "b"].map(hue => svg("circle", { r: 6, fill: `var(--${hue})` }))
    slope.setAttribute("stroke-dasharray", "6 4")
    const marks = [], label = (x, y, anchor) => svg("text", { x, y, "text-anchor": anchor })
    const ticks = below => [-1, 0, 1].map(k => {
      marks.push([label(left + (k + 1) * side / 2, top + below + 16, "middle"), k])
      return marks.at(-1)[0]
    })
    const heights = [-1, 0, 1].map(k => label(left - 6, top + (1 - k) * tall / 2 + 5, "end"))
    const art = svg("svg", { viewBox: `0 0 ${W} ${side + 50}`, tabindex: 0, role: "application", style: size + "touch-action:none;cursor:grab",
      "aria-label": "what the unit says for each L and R; drag the point, or move it with the arrow keys" },
      back, frame(side), arrow, tip, point, ...ticks(side), svg("text", { x: left + side / 2, y: top + side + 36, "text-anchor": "middle" }, "L, the path that opens"),
      svg("text", { transform: `translate(13 ${top + side / 2}) rotate(-90)`, "text-anchor": "middle" }, "R, the path that passes"))
    const chart = svg("svg", { viewBox: `0 0 ${W} ${tall + 50}`, role: "img", style: size, "aria-label": "the gate f and its slope" },
      frame(tall), ...heights, ...ticks(tall), slope, curve, ...dots,
      ...["the gate f(L)", "its slope f′(L)"].flatMap((name, k) => [svg("line", { x1: left + 135 * k, x2: left + 28 + 135 * k, y1: top + tall + 32,
        y2: top + tall + 32, stroke: `var(--${"ab"[k]})`, "stroke-width": 2.5, "stroke-dasharray": k ? "6 4" : "" }),
        svg("text", { x: left + 34 + 135 * k, y: top + tall + 36 }, name)]))
    stage.append(art, chart)
    function clip() { [L, R] = [L, R].map(v => Math.max(-reach(), Math.min(reach(), v))) }
    const go = event => {
      const box = art.getBoundingClientRect(), scale = W / box.width
      L = (((event.clientX - box.x) * scale - left) / side * 2 - 1) * reach()
      R = (1 - ((event.clientY - box.y) * scale - top) / side * 2) * reach()
      clip()
      draw()
    }
    dragged(art, go)
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }, way => {
      ;[L, R] = [L + way[0] * reach() / 20, R + way[1] * reach() / 20]
      clip()
      draw()
    })
    function draw() {
      const r = reach(), found = compute(gate, L, R, r), pixels = paint.createImageData(64, 64), F = []
      for (let k = 0; k < 64; k++) F.push(f(gate, r * ((k + 0.5) / 32 - 1))[0])
      const most = Math.max(...F.map(Math.abs)) * r
      for (let k = 0; k < 4096; k++) { // blue above zero, red and striped below, in steps
        const y = F[k % 64] * (1 - ((k >> 6) + 0.5) / 32) * r / most, t = Math.round(7 * Math.abs(y)) / 7 * (y < 0 && (k >> 6) % 4 === 0 ? 0.4 : 1)
        pixels.data.set([...(y > 0 ? [32, 99, 155] : [200, 85, 61]).map(c => 255 - t * (255 - c)), 255], 4 * k)
      }
      paint.putImageData(pixels, 0, 0)
      back.setAttribute("href", sky.toDataURL())
      const x = X(L), y = Y(R), long = Math.hypot(found.dL, found.dR), turn = Math.atan2(-found.dR, found.dL), l = 60 * long
      const [ex, ey] = [x + l * Math.cos(turn), y + l * Math.sin(turn)]
      for (const [name, value] of Object.entries({ x1: x, y1: y, x2: ex, y2: ey })) arrow.setAttribute(name, value)
      tip.setAttribute("transform", `translate(${ex} ${ey}) rotate(${turn * 180 / Math.PI})`)
      tip.setAttribute("visibility", l > 9 ? "visible" : "hidden")
      point.setAttribute("cx", x)
      point.setAttribute("cy", y)
      const height = Math.max(1.2, r), up = v => top + (1 - v / height) * tall / 2
      const all = [...Array(121).keys()].map(k => [r * (k / 60 - 1), ...f(gate, r * (k / 60 - 1))])
      curve.setAttribute("points", all.map(([a, v]) => `${X(a)},${up(v)}`).join(" "))
      slope.setAttribute("points", all.map(([a, , v]) => `${X(a)},${up(v)}`).join(" "))
      f(gate, L).forEach((v, k) => { dots[k].setAttribute("cx", x); dots[k].setAttribute("cy", up(v)) })
      const told = v => String(+v.toFixed(2)).replace("-", "−")
      marks.forEach(([mark, k]) => { mark.textContent = told(k * r) })
      heights.forEach((mark, k) => { mark.textContent = told((k - 1) * height) })
      kinds.forEach((kind, k) => kind.setAttribute("aria-pressed", data.gates[k] === gate))
      const name = { sigmoid: "σ(L)", relu: "ReLU(L)", gelu: "GELU(L)", silu: "SiLU(L)", none: "L" }[gate]
      say(`At L = ${L.toFixed(2)} and R = ${R.toFixed(2)} the gate f(L) = ${name} is ${found.dR.toFixed(2)}, and the unit says ${found.Y.toFixed(2)}. ` +
        `A gradient of 1 goes on as ${found.dL.toFixed(2)} to L and ${found.dR.toFixed(2)} to R. In this square the best linear map ` +
        `explains ${(100 * found.linear).toFixed(found.linear > 0.99 ? 1 : 0)}% of what the unit says.`,
        { gate, l: L, r: R, reach: r, y: found.Y, linear: found.linear })
    }
    draw()
  },
}
