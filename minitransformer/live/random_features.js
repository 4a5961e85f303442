// Weights of one query from random features, beside those of softmax; and the error of all outputs against the directions.
{
  compute({ d, heads, W }, kind, R, size) {
    const numbers = text => Float64Array.from(atob(text), c => (c.charCodeAt(0) << 24 >> 24) / 32)
    const all = numbers(heads), w = numbers(W), m = w.length / d, n = all.length / (3 * d)
    const at = (which, i, c) => all[(which * n + i) * d + c] * (which < 2 ? size : 1)
    const root = d ** 0.25, exact = [...Array(n).keys()].map(i => {
      const S = [...Array(n).keys()].map(j => { let s = 0; for (let c = 0; c < d; c++) s += at(0, i, c) * at(1, j, c); return s / Math.sqrt(d) })
      const top = Math.max(...S), E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      return E.map(e => e / total)
    })
    const per = kind === "positive" ? 1 : 2  // features of a direction
    const features = which => {
      const F = new Float64Array(n * m * per)
      for (let i = 0; i < n; i++) {
        let half = 0
        for (let c = 0; c < d; c++) half += (at(which, i, c) / root) ** 2 / 2
        for (let r = 0; r < m; r++) {
          let u = 0
          for (let c = 0; c < d; c++) u += w[r * d + c] * at(which, i, c) / root
          const k = (i * m + r) * per
          if (kind === "trigonometric") [F[k], F[k + 1]] = [Math.sin(u), Math.cos(u)].map(f => f * Math.exp(which * half))
          else {
            F[k] = Math.exp(u - half)
            if (per > 1) F[k + 1] = Math.exp(-u - half)
          }
        }
      }
      return F
    }
    const Q = features(0), K = features(1), wide = d + 1
    const ones = (j, c) => c < d ? at(2, j, c) : 1  // values, and a 1 whose sum is the denominator
    let groups = []
    for (let r = 0; r < m; r++) {  // what one direction adds to N and D of each query
      const group = new Float64Array(n * wide)
      for (let f = r * per; f < (r + 1) * per; f++) {
        const sum = new Float64Array(wide)
        for (let j = 0; j < n; j++) for (let c = 0; c < wide; c++) sum[c] += K[j * m * per + f] * ones(j, c)
        for (let i = 0; i < n; i++) for (let c = 0; c < wide; c++) group[i * wide + c] += Q[i * m * per + f] * sum[c]
      }
      groups.push(group)
    }
    const Y = new Float64Array(n * d), norm = A => Math.sqrt(A.reduce((s, x) => s + x * x, 0)), mean = new Float64Array(d)
    for (let i = 0; i < n; i++) for (let c = 0; c < d; c++) {
      for (let j = 0; j < n; j++) Y[i * d + c] += exact[i][j] * at(2, j, c)
      mean[c] += at(2, i, c) / n
    }
    const size_of_Y = norm(Y), off = said => norm(Y.map((y, k) => said(Math.floor(k / d), k % d) - y)) / size_of_Y
    const error = group => off((i, c) => group[i * wide + c] / group[i * wide + d])
    const medians = []
    let chosen
    for (let rows = 1; rows <= m; rows *= 2) {
      if (rows > 1) groups = groups.filter((_, k) => k % 2 === 0).map((group, k) => group.map((x, c) => x + groups[2 * k + 1][c]))
      if (rows === R) chosen = error(groups[0])
      if (rows < 8) continue
      const errors = groups.map(error).sort((a, b) => a - b), middle = errors.length >> 1
      medians.push(errors.length % 2 ? errors[middle] : (errors[middle - 1] + errors[middle]) / 2)
    }
    let negative = 0, weights
    for (let i = 0; i < n; i++) {
      const U = exact.map((_, j) => { let u = 0; for (let f = 0; f < R * per; f++) u += Q[i * m * per + f] * K[j * m * per + f]; return u })
      const D = U.reduce((a, b) => a + b), A = U.map(u => u / D)
      weights ??= A
      negative += A.filter(a => a < 0).length / (n * n)
    }
    return { exact: exact[0], weights, negative, off: chosen, medians, average: off((_, c) => mean[c]) }
  },
  build({ svg, slider, button, say, stage, minus }, compute) {
    const kinds = ["positive", "hyperbolic", "trigonometric"], sizes = [0.3, 0.4, 0.5, 0.7, 1, 1.4], dashes = ["", "9 3 2 3", "3 4"]
    const W = 320, H = 300, known = new Map()
    let kind = kinds[0]
    const size = slider("deviation", [0, 5, 1, 4], k => sizes[k], draw), rows = slider("directions R", [3, 9, 1, 6], r => 2 ** r, draw)
    const choices = kinds.map(name => button(name, () => { kind = name; draw() }))
    const style = "flex:1 1 17rem;max-width:21rem"
    const bars = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", style, "aria-label": "the weights of one query, estimated and exact" })
    const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", style, "aria-label": "error of the output against the number of directions" })
    stage.style = "display:flex;flex-wrap:wrap;gap:0 1rem"
    stage.append(bars, chart)
    const look = (name, R, s) => {
      const key = [name, R, s].join()
      if (!known.has(key)) known.set(key, compute(name, R, s))
      return known.get(key)
    }
    const word = (x, y, text, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor }, text)
    function draw() {
      const s = sizes[size.value], R = 2 ** rows.value, { exact, weights, negative, off, average } = look(kind, R, s), n = exact.length
      choices.forEach((choice, k) => choice.setAttribute("aria-pressed", kinds[k] === kind))
      const order = exact.map((_, j) => j).sort((a, b) => exact[b] - exact[a]).slice(0, 24), top = 1.4 * exact[order[0]]
      const Y = v => 30 + 240 * (1 - (Math.max(-top / 2, Math.min(top, v)) + top / 2) / (1.5 * top)), gap = 276 / order.length, X = k => 40 + k * gap
      bars.replaceChildren(...order.map((j, k) => svg("rect", { x: X(k), width: gap * 0.8, y: Math.min(Y(weights[j]), Y(0)),
        height: Math.abs(Y(weights[j]) - Y(0)), fill: weights[j] < 0 ? "var(--b)" : "var(--a)" })),
        svg("path", { d: "M" + order.map((j, k) => `${X(k)} ${Y(exact[j])}h${gap}`).join("L"), fill: "none", stroke: "currentColor", "stroke-width": 2 }),
        svg("path", { d: `M40 ${Y(0)}H316M40 ${Y(-top)}V30`, stroke: "var(--line)" }),
        word(36, Y(0) + 4, "0", "end"), ...[-1, 1, 2].map(k => word(36, Y(k * top / 2) + 4, minus((k * top / 2).toFixed(top < 0.1 ? 3 : 2)), "end")),
        word(40, 18, "weights: bars estimated, line softmax", "start"), word(178, 292, `24 of ${n} keys, the nearest first`))
      const U = R => 48 + 44 * (Math.log2(R) - 3), V = e => 30 + 60 * (2 - Math.log10(Math.max(0.01, Math.min(100, e))))
      chart.replaceChildren(svg("path", { d: `M48 30V270H316`, fill: "none", stroke: "var(--line)" }),
        ...[0.01, 0.1, 1, 10, 100].map(e => word(42, V(e) + 4, e, "end")), ...[8, 32, 128, 512].map(r => word(U(r), 287, r)),
        word(40, 18, "error of Y, by the number of directions", "start"),
        svg("path", { d: `M48 ${V(average)}H316`, stroke: "currentColor", "stroke-width": 6, opacity: 0.25 }),
        average < 0.4 ? word(316, V(average) - 7, "average of all values", "end") : word(56, V(average) + 16, "average of all values", "start"),
        ...kinds.flatMap((name, k) => {
          const line = { fill: "none", stroke: name === kind ? "var(--b)" : "var(--a)", "stroke-width": name === kind ? 3 : 1.8, "stroke-dasharray": dashes[k] }
          return [svg("polyline", { points: look(name, R, s).medians.map((e, r) => `${U(2 ** (r + 3))},${V(e)}`).join(" "), ...line }),
            svg("path", { d: `M56 ${234 + 13 * k}h26`, ...line }), word(88, 238 + 13 * k, name, "start")]
        }),
        svg("circle", { cx: U(R), cy: V(off), r: 6, fill: "var(--b)" }))
      say(`With ${R} ${kind} directions, for entries of deviation ${s}, Y is off by ${off.toPrecision(2)} times its length in this draw; the ` +
        `average of all values, given to every query, by ${average.toPrecision(2)} times. ${negative ? `${Math.max(0.01, negative).toFixed(2)} of the weights are negative.` : "No weight is negative."}`,
        { kind, directions: R, size: s, off, average, negative })
    }
    draw()
  },
}
