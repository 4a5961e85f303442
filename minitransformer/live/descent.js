// A state that is dragged about, the path of its updates, and the energy as shades of blue.
{
  compute({ patterns }, x, y, beta, steps = 60) {
    const lengths = patterns.map(([a, b]) => a * a + b * b)
    const look = (x, y) => {
      const S = patterns.map(([a, b]) => beta * (a * x + b * y)), top = Math.max(...S)
      const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      return { weights: E.map(e => e / total), lse: top + Math.log(total) }
    }
    for (let step = 0; step < steps; step++) {
      const { weights } = look(x, y)
      ;[x, y] = [0, 1].map(c => weights.reduce((sum, w, j) => sum + w * patterns[j][c], 0))
    }
    const { weights, lse } = look(x, y)
    const energy = (Math.log(patterns.length) - lse) / beta + (x * x + y * y) / 2 + Math.max(...lengths) / 2
    return { x, y, energy, weights }
  },
  build({ data, make, svg, slider, button, dragged, typed, say, stage }, compute) {
    const W = 440, R = 1.3, X = x => (x / R + 1) * W / 2, Y = y => (1 - y / R) * W / 2
    let [x, y] = data.start
    const beta = slider("β", [0, 5, 0.25, 3], b => (2 ** b).toFixed(1), draw)
    const shown = slider("updates", [0, 12, 1, 12], k => k, draw)
    button("begin again", () => { [x, y] = data.start; draw() })
    const sky = make("canvas", { width: 64, height: 64 }), paint = sky.getContext("2d")
    const back = svg("image", { x: 0, y: 0, width: W, height: W, preserveAspectRatio: "none" })
    const path = svg("polyline", { fill: "none", stroke: "var(--b)", "stroke-width": 2.5 }), dots = svg("g", { fill: "var(--b)" })
    const keys = data.patterns.map(([a, b], j) => svg("g", { transform: `translate(${X(a)} ${Y(b)})` },
      svg("path", { d: "M0 -9L8 6L-8 6Z", fill: "#111", stroke: "#fff" }),
      svg("text", { y: -14, "text-anchor": "middle", style: "fill:#111;font-weight:600" }, j + 1)))
    const start = svg("circle", { r: 10, fill: "#fff", stroke: "var(--b)", "stroke-width": 3, style: "cursor:grab" })
    const art = svg("svg", { viewBox: `0 0 ${W} ${W}`, tabindex: 0, role: "application", style: "max-width:30rem;touch-action:none",
      "aria-label": "patterns in the plane; drag the white circle, or move it with the arrow keys" }, back, path, dots, ...keys, start)
    stage.append(art)
    const go = event => {
      const place = art.getBoundingClientRect(), clip = v => Math.max(-1.25, Math.min(1.25, v))
      x = clip(((event.clientX - place.x) / place.width * 2 - 1) * R)
      y = clip((1 - (event.clientY - place.y) / place.height * 2) * R)
      draw()
    }
    dragged(art, go)
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }, way => {
      ;[x, y] = [x + 0.05 * way[0], y + 0.05 * way[1]].map(v => Math.max(-1.25, Math.min(1.25, v)))
      draw()
    })
    let drawn
    function draw() {
      const b = 2 ** beta.value
      if (drawn !== b) {
        drawn = b
        const pixels = paint.createImageData(64, 64), E = []
        for (let k = 0; k < 4096; k++) E.push(compute((k % 64 + 0.5) / 32 * R - R, R - ((k >> 6) + 0.5) / 32 * R, b, 0).energy)
        const low = Math.min(...E), high = Math.max(...E)
        E.forEach((e, k) => {
          const t = Math.floor(14 * Math.sqrt((e - low) / (high - low))) / 14
          pixels.data.set([60 + 190 * t, 120 + 130 * t, 180 + 72 * t, 255], 4 * k)
        })
        paint.putImageData(pixels, 0, 0)
        back.setAttribute("href", sky.toDataURL())
      }
      const states = [...Array(shown.value + 1).keys()].map(k => compute(x, y, b, k)), end = states.at(-1), rest = compute(x, y, b)
      path.setAttribute("points", states.map(s => `${X(s.x)},${Y(s.y)}`).join(" "))
      dots.replaceChildren(...states.slice(1).map(s => svg("circle", { cx: X(s.x), cy: Y(s.y), r: 4 })))
      start.setAttribute("cx", X(x))
      start.setAttribute("cy", Y(y))
      const share = Math.max(...rest.weights), largest = rest.weights.indexOf(share) + 1
      say(`With β = ${b.toFixed(1)} the energy falls from ${states[0].energy.toFixed(3)} to ${end.energy.toFixed(3)} in ${shown.value} update${shown.value === 1 ? "" : "s"}. ` +
        (share > 0.9 ? `The state comes to rest at pattern ${largest}.`
                     : `The state comes to rest among the patterns: number ${largest} has the largest weight, ${share.toFixed(2)}.`),
        { beta: b, x: end.x, y: end.y, energy: end.energy, share })
    }
    draw()
  },
}
