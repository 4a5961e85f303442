// Twelve bars: softmax of the scores of one query, divided by √d or not, at a temperature.
{
  compute({ scores }, width, divide, temperature) {
    const S = scores[width].map(s => s / (divide ? Math.sqrt(width) : 1) / temperature), top = Math.max(...S)
    const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b), weights = E.map(e => e / total)
    const sum = f => weights.reduce((a, w) => a + f(w), 0)
    return {
      largest: Math.max(...weights), weights,
      seen: Math.exp(-sum(w => w * Math.log(Math.max(w, 1e-300)))), passes: 1 - sum(w => w * w),
    }
  },
  build({ data, svg, slider, box, say, stage }, compute) {
    const widths = Object.keys(data.scores).map(Number), n = data.scores[widths[0]].length, W = 520, H = 170, gap = W / n
    const width = slider("width d", [0, widths.length - 1, 1, 2], k => widths[k], draw)
    const heat = slider("temperature", [-3, 3, 0.25, 0], t => (2 ** t).toFixed(2), draw)
    const divide = box("divide by √d", false, draw)
    const Y = w => 20 + H * (1 - w), bars = [], names = []
    const art = svg("svg", { viewBox: `0 0 ${W} ${H + 64}`, role: "img", "aria-label": "bars: the weight of each key" })
    const page = "var(--pst-color-background, var(--jp-layout-color0, #fff))"
    for (let j = 0; j < n; j++) {
      const x = gap * (j + 0.5)
      bars.push(svg("rect", { x: x - 0.36 * gap, width: 0.72 * gap, rx: 2 }))
      names.push(svg("text", { x, "text-anchor": "middle", style: `paint-order:stroke;stroke:${page};stroke-width:4px` }))
      art.append(bars[j], svg("text", { x, y: H + 40, "text-anchor": "middle" }, j + 1))
    }
    art.append(svg("line", { x1: 0, x2: W, y1: Y(0), y2: Y(0), stroke: "var(--line)" }),
      svg("line", { x1: 0, x2: W, y1: Y(1 / n), y2: Y(1 / n), stroke: "currentColor", "stroke-dasharray": "2 4" }),
      svg("text", { x: W / 2, y: H + 58, "text-anchor": "middle" }, "key"), ...names) // above the dotted line
    stage.append(art)
    function draw() {
      const d = widths[width.value], temperature = 2 ** heat.value
      const { largest, seen, passes, weights } = compute(d, divide.checked, temperature)
      weights.forEach((w, j) => {
        bars[j].setAttribute("y", Y(w))
        bars[j].setAttribute("height", H * w)
        bars[j].setAttribute("fill", w === largest ? "var(--b)" : "var(--a)")
        names[j].setAttribute("y", Y(w) - 5)
        names[j].textContent = w >= 0.005 ? w.toFixed(2) : ""
      })
      say(`For d = ${d}, ${divide.checked ? "divided by √d" : "not divided"}, at temperature ${temperature.toFixed(2)}, the largest ` +
        `weight is ${largest.toFixed(2)}: the average is over ${seen.toFixed(1)} of ${n} keys, and the ` +
        `derivatives of the weights by their own scores sum to ${passes.toFixed(2)}.`, { width: d, divide: divide.checked, temperature, largest, seen, passes })
    }
    draw()
  },
}
