// Eight gates to drag, and below each the column of its candidate: a weight for each state. The row of one state is framed.
{
  compute(data, gates, state) {
    const n = gates.length, weights = [[1, ...Array(n).fill(0)]]
    gates.forEach((u, k) => weights.push(weights[k].map((w, j) => j === k + 1 ? 1 - u : u * w)))
    const row = weights[state].slice(0, state + 1), largest = Math.max(...row)
    return {
      weights, largest, candidate: row.indexOf(largest), sum: row.reduce((a, b) => a + b),
      age: row.reduce((sum, w, j) => sum + w * (state - j), 0),
    }
  },
  build({ data, svg, slider, button, dragged, typed, say, stage }, compute) {
    const n = data.gates.length, w = 40, h = 25, left = 32, high = 84, top = high + 62, W = left + (n + 1) * w
    const low = k => "₀₁₂₃₄₅₆₇₈"[k], name = j => j ? "c" + low(j) : "h₀", X = j => left + j * w
    let gates = [...data.gates], gate = 6
    const all = slider("all gates", [0, 1, 0.05, 0.8], u => u.toFixed(2), () => { gates = gates.map(() => all.value); draw() })
    const state = slider("state", [1, n, 1, n], i => "h" + low(i), draw)
    button("begin again", () => { gates = [...data.gates]; draw() })
    const art = svg("svg", { viewBox: `0 0 ${W} ${top + n * h + 10}`, tabindex: 0, role: "application", style: "max-width:30rem",
      "aria-label": "gates above, weights below: the left and right arrow keys choose a gate, the up and down keys move it" })
    const tubes = gates.map((_, k) => svg("rect", { x: X(k + 1) + 7, y: 20, width: w - 16, height: high, rx: 3, fill: "transparent",
      style: "cursor:ns-resize;touch-action:none" }))
    const bars = gates.map((_, k) => svg("rect", { x: X(k + 1) + 7, width: w - 16, rx: 3, fill: "currentColor", opacity: 0.55, "pointer-events": "none" }))
    const numbers = gates.map((_, k) => svg("text", { x: X(k + 1) + w / 2 - 1, y: 14, "text-anchor": "middle" }))
    const cells = gates.map((_, i) => [...Array(i + 2).keys()].map(j => svg("rect", { x: X(j), y: top + i * h, width: w - 2,
      height: h - 2, rx: 2, stroke: "var(--line)" })))
    const shown = [...Array(n + 1).keys()].map(j => svg("text", { x: X(j) + w / 2 - 1, "text-anchor": "middle", "pointer-events": "none" }))
    const frame = svg("rect", { x: left - 3, height: h + 4, fill: "none", stroke: "var(--b)", "stroke-width": 2.5, rx: 3 })
    const named = [...Array(n + 1).keys()].map(j => svg("text", { x: X(j) + w / 2 - 1, y: top - 8, "text-anchor": "middle" }, name(j)))
    const states = gates.map((_, i) => svg("text", { x: left - 9, y: top + (i + 0.68) * h, "text-anchor": "end" }, "h" + low(i + 1)))
    art.append(...tubes, ...bars, ...numbers, ...cells.flat(), ...shown, frame, ...named, ...states, svg("text", { x: 0, y: 66 }, "gate"),
      ...gates.map((_, k) => svg("text", { x: X(k + 1) + w / 2 - 1, y: high + 36, "text-anchor": "middle" }, "u" + low(k + 1))))
    stage.append(art)
    const set = (k, u) => { gate = k + 1; gates[k] = Math.round(20 * Math.max(0, Math.min(1, u))) / 20; draw() }
    tubes.forEach((tube, k) => {
      const go = event => {
        const box = tube.getBoundingClientRect()
        set(k, 1 - (event.clientY - box.y) / box.height)
      }
      dragged(tube, go)
    })
    cells.forEach((row, i) => row.forEach(cell => { cell.onclick = () => { state.value = i + 1; draw() } }))
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 0.05], ArrowDown: [0, -0.05] }, way => {
      gate = (gate - 1 + way[0] + n) % n + 1
      set(gate - 1, gates[gate - 1] + way[1])
    })
    function draw() {
      const i = state.value, { weights, candidate, largest, sum, age } = compute(gates, i)
      gates.forEach((u, k) => {
        bars[k].setAttribute("y", 20 + high * (1 - u))
        bars[k].setAttribute("height", high * u)
        tubes[k].setAttribute("stroke", k + 1 === gate ? "var(--b)" : "var(--line)")
        tubes[k].setAttribute("stroke-width", k + 1 === gate ? 2.5 : 1)
        numbers[k].textContent = u.toFixed(2)
        cells[k].forEach((cell, j) => cell.setAttribute("fill", `color-mix(in srgb, var(--a) ${90 * weights[k + 1][j]}%, transparent)`))
        states[k].setAttribute("font-weight", k + 1 === i ? 700 : 400)
      })
      shown.forEach((text, j) => {
        text.setAttribute("y", top + (i - 0.32) * h)
        text.textContent = j <= i ? weights[i][j].toFixed(2) : ""
        text.style.fill = weights[i][j] > 0.55 ? "var(--jp-layout-color1, var(--pst-color-background, #fff))" : ""
      })
      frame.setAttribute("y", top + (i - 1) * h - 3)
      frame.setAttribute("width", (i + 1) * w + 4)
      const entered = candidate ? 1 - gates[candidate - 1] : 1, last = candidate === i
      say(`In h${low(i)} the largest weight, ${largest.toFixed(2)}, is that of ${name(candidate)}` + (last ? ", which has just come in. "
        : `, which began with ${entered.toFixed(2)} and has passed ${i - candidate} gate${i - candidate > 1 ? "s" : ""} since. `) +
        `The ${i + 1} weights sum to ${sum.toFixed(2)}, and what they weigh is ${age.toFixed(1)} steps old on average.`,
        { state: i, candidate, largest, sum, age, gates: gates.join(" ") })
    }
    draw()
  },
}
