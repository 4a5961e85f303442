// Four clocks with the hand of a query and that of a key; below, the score against their distance.
{
  compute({ q, k }, i, j, base) {
    const d = q.length, hands = (x, at) => [...Array(d / 2).keys()].map(f => {
      const angle = at * base ** (-2 * f / d), [c, s] = [Math.cos(angle), Math.sin(angle)]
      return [x[2 * f] * c - x[2 * f + 1] * s, x[2 * f] * s + x[2 * f + 1] * c]
    })
    const Q = hands(q, i), K = hands(k, j), dots = Q.map(([a, b], f) => a * K[f][0] + b * K[f][1])
    return {
      Q, K, score: dots.reduce((a, b) => a + b) / Math.sqrt(d),
      apart: Q.map(([a, b], f) => Math.atan2(K[f][1] * a - K[f][0] * b, dots[f])),
    }
  },
  build({ data, svg, slider, button, say, stage, minus }, compute) {
    const n = data.longest, pairs = data.q.length / 2, W = 520, gap = W / pairs, R = 56
    const i = slider("query at i", [0, n, 1, 12], v => v, draw), j = slider("key at j", [0, n, 1, 7], v => v, draw)
    const base = slider("base", [1, 6, 0.5, 4], v => Math.round(10 ** v).toLocaleString("en"), draw)
    for (const by of [-5, -1, 1, 5]) {
      button(minus(`both ${by > 0 ? "+" : ""}${by}`), () => {
        if (Math.min(i.value, j.value) + by < 0 || Math.max(i.value, j.value) + by > n) return
        i.value += by
        j.value += by
        draw()
      })
    }
    const art = svg("svg", { viewBox: `0 0 ${W} 350`, role: "img", "aria-label": "clocks, and the score against the distance" })
    const clocks = [...Array(pairs).keys()].map(f => {
      const hand = hue => svg("line", { stroke: `var(--${hue})`, "stroke-width": 4, "stroke-linecap": "round" })
      const clock = { q: hand("a"), k: hand("b"), arc: svg("path", { fill: "none", stroke: "currentColor", "stroke-dasharray": "3 3" }),
        says: ["speed", "apart"].map((_, line) => svg("text", { y: R + 20 + 17 * line, "text-anchor": "middle" })) }
      art.append(svg("g", { transform: `translate(${gap * (f + 0.5)} ${R + 4})` },
        svg("circle", { r: R, fill: "none", stroke: "var(--line)" }), clock.arc, clock.q, clock.k, ...clock.says))
      return clock
    })
    const left = 44, PW = W - left - 10, mid = 240, PH = 58, X = o => left + (o + n) / (2 * n) * PW
    const curve = svg("path", { fill: "none", stroke: "currentColor", "stroke-width": 1.8 })
    const dot = svg("circle", { r: 6, fill: "var(--b)" }), number = svg("text", { "text-anchor": "middle" })
    art.append(svg("line", { x1: left, x2: left + PW, y1: mid, y2: mid, stroke: "var(--line)" }),
      svg("line", { x1: X(0), x2: X(0), y1: mid - PH, y2: mid + PH, stroke: "var(--line)" }), curve, dot, number,
      svg("text", { x: 0, y: mid + 4 }, "score"), svg("text", { x: X(0), y: mid + PH + 38, "text-anchor": "middle" }, "distance j − i"),
      ...[-n, -n / 2, 0, n / 2, n].map(o => svg("text", { x: X(o), y: mid + PH + 18, "text-anchor": "middle" }, minus(o))))
    stage.append(art)
    let drawn, top = 1
    function draw() {
      const b = 10 ** base.value, o = j.value - i.value, { Q, K, score, apart } = compute(i.value, j.value, b)
      clocks.forEach((clock, f) => {
        const point = (line, [x, y]) => {
          const length = Math.hypot(x, y)
          line.setAttribute("x2", 0.92 * R * x / length)
          line.setAttribute("y2", -0.92 * R * y / length)
          return Math.atan2(y, x)
        }
        const from = point(clock.q, Q[f]), r = 0.45 * R, to = from + apart[f]
        point(clock.k, K[f])
        clock.arc.setAttribute("d", `M${r * Math.cos(from)} ${-r * Math.sin(from)}A${r} ${r} 0 0 ${apart[f] > 0 ? 0 : 1} ${r * Math.cos(to)} ${-r * Math.sin(to)}`)
        clock.says[0].textContent = minus(`${Math.round(apart[f] * 180 / Math.PI)}° apart`)
        clock.says[1].textContent = `ω = ${(b ** (-f / pairs)).toPrecision(2)}`
      })
      if (drawn !== b) {
        drawn = b
        const scores = [...Array(2 * n + 1).keys()].map(x => compute(n, x, b).score)
        top = 1.05 * Math.max(...scores.map(Math.abs))
        curve.setAttribute("d", "M" + scores.map((s, x) => `${X(x - n).toFixed(1)} ${(mid - s / top * PH).toFixed(1)}`).join("L"))
      }
      const y = mid - score / top * PH
      dot.setAttribute("cx", X(o))
      dot.setAttribute("cy", y)
      number.setAttribute("x", X(o))
      number.setAttribute("y", y - 12)
      number.textContent = minus(score.toFixed(2))
      say(`The query stands at ${i.value} and the key at ${j.value}: their score is ${score.toFixed(3)}. Moved together, all hands turn, ` +
        `but the angles between them and the score stay the same: they depend only on j\u00a0−\u00a0i\u00a0=\u00a0${o}.`, { score, distance: o, base: b })
    }
    draw()
  },
}
