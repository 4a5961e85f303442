// A bar for each offset, to drag, and below the attention of ten words. The bars that the chosen query uses are dark.
{
  compute({ content }, bias, strength, query) {
    const n = content.length, A = content.map((row, i) => {
      const S = row.map((s, j) => strength * s + bias[j - i + n - 1]), top = Math.max(...S)
      const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      return E.map(e => e / total)
    })
    const rounded = A[query].map(a => Math.round(1e9 * a))
    return {
      A, largest: Math.max(...A[query]), key: rounded.indexOf(Math.max(...rounded)),
      ahead: A.reduce((sum, row, i) => sum + row.reduce((part, a, j) => j > i ? part + a : part, 0), 0) / n,
    }
  },
  build({ data, svg, slider, button, dragged, typed, say, stage, minus }, compute) {
    const n = data.content.length, count = 2 * n - 1, names = Object.keys(data.biases), most = 6
    const W = 400, left = 28, w = (W - left) / count, high = 120, zero = 14 + high / 2, top = high + 88, size = 24, from = 94
    let bias, name, offset = -1
    const asks = slider("query i", [0, n - 1, 1, 6], i => i, draw)
    const content = slider("content", [0, 3, 0.5, 0], c => c.toFixed(1), draw)
    const choices = names.map(each => button(each, () => { begin(each); draw() }))
    button("add 1 to all", () => { bias = bias.map(b => b + 1); draw() })
    const X = o => left + (o + n - 1) * w, Y = b => zero - Math.max(-1.1, Math.min(1.1, b / most)) * high / 2
    const bars = [...Array(count).keys()].map(() => svg("rect", { width: w - 3, rx: 1.5, "pointer-events": "none" }))
    const pick = svg("rect", { y: 8, width: w + 1, height: high + 12, rx: 3, fill: "none", stroke: "var(--b)", "stroke-width": 2 })
    const area = svg("rect", { x: left, y: 8, width: W - left, height: high + 12, fill: "transparent", style: "cursor:ns-resize;touch-action:none" })
    const cells = [...Array(n * n).keys()].map(k => svg("rect", { x: from + k % n * size, y: top + Math.floor(k / n) * size,
      width: size - 1, height: size - 1, rx: 2, stroke: "var(--line)" }))
    const row = svg("rect", { x: from - 2, width: n * size + 3, height: size + 3, rx: 3, fill: "none", stroke: "var(--b)", "stroke-width": 2 })
    const middle = { "text-anchor": "middle" }, end = { "text-anchor": "end" }
    const art = svg("svg", { viewBox: `0 0 ${W} ${top + n * size + 8}`, tabindex: 0, role: "application", style: "max-width:30rem",
      "aria-label": "numbers of the offsets above, attention below: the left and right arrow keys choose an offset, the up and down keys move its number" },
      svg("line", { x1: left, x2: W, y1: zero, y2: zero, stroke: "currentColor" }), ...bars, pick, area,
      ...[most, 0, -most].map(b => svg("text", { x: left - 8, y: Y(b) + 4, ...end }, minus(b))),
      ...[-9, -6, -3, 0, 3, 6, 9].map(o => svg("text", { x: X(o) + w / 2, y: high + 36, ...middle }, minus(o))),
      svg("text", { x: left + (W - left) / 2, y: high + 54, ...middle }, "offset o = j − i"), ...cells, row,
      ...[0, 3, 6, 9].flatMap(k => [svg("text", { x: from + (k + 0.5) * size, y: top - 6, ...middle }, k),
        svg("text", { x: from - 9, y: top + (k + 0.68) * size, ...end }, k)]),
      svg("text", { x: from + n * size + 10, y: top - 6 }, "key j"), svg("text", { x: from - 26, y: top + 5.2 * size, ...end }, "query i"))
    stage.append(art)
    function begin(each) { name = each; bias = [...data.biases[each]] }
    const set = (o, b) => { offset = o; name = ""; bias[o + n - 1] = Math.max(-most, Math.min(most, Math.round(2 * b) / 2)); draw() }
    const go = event => {
      const box = area.getBoundingClientRect(), k = Math.floor((event.clientX - box.x) / box.width * count)
      set(Math.max(0, Math.min(count - 1, k)) - n + 1, (0.5 - (event.clientY - box.y) / box.height) * 2 * most * (high + 12) / high)
    }
    dragged(area, go)
    cells.forEach((cell, k) => { cell.onclick = () => { asks.value = Math.floor(k / n); draw() } })
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 0.5], ArrowDown: [0, -0.5] }, way => {
      offset = Math.max(1 - n, Math.min(n - 1, offset + way[0]))
      if (way[1]) set(offset, bias[offset + n - 1] + way[1])
      else draw()
    })
    function draw() {
      const query = asks.value, { A, largest, key, ahead } = compute(bias, content.value, query)
      bars.forEach((bar, k) => {
        const o = k - n + 1, y = Y(bias[k]), used = query + o >= 0 && query + o < n
        bar.setAttribute("x", X(o) + 1.5)
        bar.setAttribute("y", Math.min(y, zero) - 1)
        bar.setAttribute("height", Math.abs(y - zero) + 2)
        bar.setAttribute("fill", "var(--a)")
        bar.setAttribute("opacity", used ? 1 : 0.35)
      })
      cells.forEach((cell, k) => cell.setAttribute("fill", `color-mix(in srgb, var(--a) ${100 * A[Math.floor(k / n)][k % n]}%, transparent)`))
      pick.setAttribute("x", X(offset) - 0.5)
      row.setAttribute("y", top + query * size - 2)
      choices.forEach(choice => choice.setAttribute("aria-pressed", choice.textContent === name))
      const here = n - Math.abs(offset), even = Math.max(...A[query]) - Math.min(...A[query]) < 1e-9
      say(`The number of offset ${offset} is ${bias[offset + n - 1].toFixed(1)} and stands in ${here} of the ${n * n} scores. Query ${query} ` +
        (even ? "looks at all keys alike. " : `gives its largest weight, ${largest.toFixed(2)}, to key ${key}, at offset ${key - query}. `) +
        `On average ${ahead.toFixed(2)} of a row lies ahead of its query.`,
        { offset, number: bias[offset + n - 1], query, key, largest, ahead, content: content.value })
    }
    begin("one back")
    draw()
  },
}
