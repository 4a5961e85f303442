// Two states as squares of colour, with a minus in what is negative, filling up pair by pair, and below them the error of reading each key.
{
  compute({ K, V }, written, beta) {
    const d = K[0].length, zeros = () => K[0].map(() => Array(d).fill(0)), sums = zeros(), delta = zeros()
    const read = (S, k) => S[0].map((_, c) => k.reduce((sum, x, r) => sum + x * S[r][c], 0))
    for (let t = 0; t < written; t++) {
      const there = read(delta, K[t])
      K[t].forEach((x, r) => V[t].forEach((v, c) => {
        sums[r][c] += x * v
        delta[r][c] += beta * x * (v - there[c])
      }))
    }
    const wrong = S => K.slice(0, written).map((k, j) => Math.hypot(...read(S, k).map((y, c) => y - V[j][c])))
    return { sums, delta, sums_wrong: wrong(sums), delta_wrong: wrong(delta) }
  },
  build({ data, svg, slider, button, say, stage }, compute) {
    const n = data.K.length, d = data.K[0].length, W = 520, size = 26, top = 34
    const written = slider("pairs written", [0, n, 1, 5], k => k, draw)
    const beta = slider("β", [0, 2, 0.1, 1], b => b.toFixed(1), draw)
    button("write one more", () => { written.value = written.value % n + 1; draw() })
    const art = svg("svg", { viewBox: `0 0 ${W} 380`, role: "img", "aria-label": "two states, and the errors of reading them" })
    const look = side => side ? { fill: "none", stroke: "var(--b)", "stroke-width": 2 } : { fill: "var(--a)" }
    const squares = ["sums", "delta"].map((name, side) => {
      const x = 20 + 270 * side
      art.append(svg("rect", { x, y: 9, width: 11, height: 11, rx: 1, ...look(side) }),
        svg("text", { x: x + 18, y: 20, style: "font-weight:600" }, side ? "values are corrected" : "values are added"))
      return [...Array(d * d).keys()].map(k => {
        const cell = svg("rect", { x: x + k % d * size, y: top + Math.floor(k / d) * size, width: size - 1, height: size - 1, rx: 2 })
        const minus = svg("path", { d: `M${x + k % d * size + 8} ${top + (Math.floor(k / d) + 0.5) * size - 0.5}h9`, stroke: "currentColor", "stroke-width": 2 })
        art.append(cell, minus)
        return [cell, minus]
      })
    })
    const low = 350, high = 120, gap = (W - 60) / n
    const bars = [...Array(n).keys()].map(j => [0, 1].map(side => {
      const bar = svg("rect", { x: 50 + gap * (j + 0.14 + 0.36 * side), width: 0.34 * gap, rx: 1, ...look(side) })
      art.append(bar)
      return bar
    }))
    for (let j = 0; j < n; j++) art.append(svg("text", { x: 50 + gap * (j + 0.5), y: low + 18, "text-anchor": "middle" }, j + 1))
    art.append(svg("line", { x1: 50, x2: W - 10, y1: low, y2: low, stroke: "currentColor" }),
      svg("text", { x: 0, y: low - high + 4 }, "error of reading"), svg("text", { x: 0, y: low + 18 }, "pair"))
    stage.append(art)
    const colour = v => `color-mix(in srgb, ${v < 0 ? "var(--b)" : "var(--a)"} ${Math.min(100, 60 * Math.abs(v))}%, transparent)`
    function draw() {
      const found = compute(written.value, beta.value)
      squares.forEach((cells, side) => {
        const S = (side ? found.delta : found.sums).flat()
        cells.forEach(([cell, minus], k) => {
          cell.setAttribute("fill", colour(S[k]))
          cell.setAttribute("stroke", "var(--line)")
          minus.setAttribute("visibility", S[k] < -0.1 ? "visible" : "hidden")
        })
      })
      const both = [found.sums_wrong, found.delta_wrong], tallest = Math.max(3, ...both.flat())
      bars.forEach((pair, j) => pair.forEach((bar, side) => {
        const h = (both[side][j] ?? 0) / tallest * high
        bar.setAttribute("y", low - h)
        bar.setAttribute("height", h)
      }))
      const mean = list => list.reduce((a, b) => a + b, 0) / Math.max(list.length, 1)
      const [sums, delta] = both.map(mean), last = found.delta_wrong.at(-1) ?? 0
      say(written.value ? `After ${written.value} of ${n} pairs, with β = ${beta.value.toFixed(1)}, reading is wrong by ${sums.toFixed(2)} on average where values ` +
        `were added, and by ${delta.toFixed(2)} where they were corrected; the pair written last is wrong by ${last.toFixed(2)} there.`
        : "Nothing is written yet: both states are zero.", { written: written.value, beta: beta.value, sums, delta, last })
    }
    draw()
  },
}
