// A query among keys on a circle, an arc for its bucket in each round; beside it what rounds find, and how many keys they meet.
{
  compute({ keys, rotations, length }, buckets, rounds, degrees) {
    const turn = angle => [Math.cos(angle * Math.PI / 180), Math.sin(angle * Math.PI / 180)], half = buckets / 2
    const bucket = ([x, y], [first, second]) => {
      let best = -Infinity, which
      for (let b = 0; b < buckets; b++) {
        const along = (b < half ? 1 : -1) * (x * first[b % half] + y * second[b % half])
        if (along > best) [best, which] = [along, b]
      }
      return which
    }
    const K = keys.map(turn), of_keys = rotations.map(round => K.map(k => bucket(k, round)))
    const look = angle => {
      const q = turn(angle), S = K.map(k => length * (q[0] * k[0] + q[1] * k[1]) / Math.SQRT2), top = Math.max(...S)
      const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      const own = rotations.map(round => bucket(q, round)), met = K.map(() => false)
      const after = own.map((b, r) => (of_keys[r].forEach((other, j) => { met[j] ||= other === b }), [...met]))
      return { weights: E.map(e => e / total), own, after }
    }
    const share = (weights, met) => weights.reduce((sum, w, j) => sum + (met[j] ? w : 0), 0)
    const { weights, after, own } = look(degrees), met = after[rounds - 1]
    const largest = keys.map((_, j) => j).sort((a, b) => weights[b] - weights[a]).slice(0, 8)
    const all = [...Array(72).keys()].map(k => look(5 * k)), mean = f => rotations.map((_, r) => all.reduce((sum, one) => sum + f(one, r), 0) / 72)
    return {
      weights, own, met: met.map(Number), found: share(weights, met), missed: largest.filter(j => !met[j]).length,
      bucket_at: (angle, r) => bucket(turn(angle), rotations[r]),
      keys_met: mean(({ after }, r) => after[r].filter(Boolean).length / keys.length),
      weight_found: mean(({ weights, after }, r) => share(weights, after[r])),
    }
  },
  build({ data, svg, slider, dragged, typed, say, stage }, compute) {
    const R = 102, C = 160, n = data.keys.length, most = data.rotations.length, W = 320
    let degrees = 40
    const buckets = slider("buckets b", [1, 4, 1, 3], b => 2 ** b, draw), rounds = slider("rounds", [1, most, 1, 1], r => r, draw)
    const place = (angle, r) => [C + r * Math.cos(angle * Math.PI / 180), C - r * Math.sin(angle * Math.PI / 180)]
    const half = "flex:1 1 17rem;max-width:21rem"
    const art = svg("svg", { viewBox: `0 0 ${2 * C} ${2 * C}`, tabindex: 0, role: "application", style: `${half};touch-action:none;cursor:pointer`,
      "aria-label": "a query and keys on a circle: drag the arrow, or turn it with the arrow keys" })
    const chart = svg("svg", { viewBox: `0 0 ${W} ${2 * C}`, role: "img", style: half,
      "aria-label": "share of the weight found against the share of keys met, for one to eight rounds" })
    stage.style = "display:flex;flex-wrap:wrap;gap:0 1rem;align-items:center"
    stage.append(art, chart)
    const X = v => 44 + v * 258, Y = v => 274 - v * 238
    const aim = event => {
      const box = art.getBoundingClientRect(), scale = 2 * C / box.width
      const x = (event.clientX - box.x) * scale - C, y = C - (event.clientY - box.y) * scale
      degrees = (Math.round(Math.atan2(y, x) * 180 / Math.PI) + 360) % 360
      draw()
    }
    dragged(art, aim)
    typed(art, { ArrowLeft: 2, ArrowUp: 2, ArrowRight: -2, ArrowDown: -2 }, way => {
      degrees = (degrees + way + 360) % 360
      draw()
    })
    function draw() {
      const b = 2 ** buckets.value, M = rounds.value
      const { weights, own, met, found, missed, keys_met, weight_found, bucket_at } = compute(b, M, degrees)
      const arcs = [...Array(M).keys()].map(r => {
        let path = "", on = false
        for (let k = 0; k <= 360; k++) {
          const inside = bucket_at(k, r) === own[r]
          if (inside) path += (on ? "L" : "M") + place(k, R + 16 + 5.5 * r).map(v => v.toFixed(1))
          on = inside
        }
        return svg("path", { d: path, fill: "none", stroke: "var(--a)", "stroke-width": 3.5, opacity: 0.75 })
      })
      const dots = data.keys.map((angle, j) => {
        const [cx, cy] = place(angle, R)
        return svg("circle", { cx, cy, r: 2.2 + 31 * Math.sqrt(weights[j]), "stroke-width": 1.8, "fill-opacity": met[j] ? 0.75 : 0.05,
          fill: met[j] ? "var(--a)" : "var(--b)", stroke: met[j] ? "var(--a)" : "var(--b)" })
      })
      const [x, y] = place(degrees, R - 24), wing = turn => place(degrees + turn, R - 38).join(" ")
      art.replaceChildren(svg("circle", { cx: C, cy: C, r: R, fill: "none", stroke: "var(--line)" }), ...arcs, ...dots,
        svg("path", { d: `M${C} ${C}L${x} ${y}M${wing(8)}L${x} ${y}L${wing(-8)}`, fill: "none", stroke: "currentColor", "stroke-width": 3 }))
      const line = keys_met.map((k, r) => `${X(k)},${Y(weight_found[r])}`).join(" ")
      chart.replaceChildren(
        svg("path", { d: `M${X(0)} ${Y(1)}V${Y(0)}H${X(1)}`, fill: "none", stroke: "currentColor" }),
        svg("path", { d: `M${X(0)} ${Y(0)}L${X(1)} ${Y(1)}`, stroke: "currentColor", "stroke-dasharray": "2 4" }),
        svg("polyline", { points: line, fill: "none", stroke: "var(--a)", "stroke-width": 2.5 }),
        ...keys_met.map((k, r) => svg("circle", { cx: X(k), cy: Y(weight_found[r]), r: r + 1 === M ? 7 : 4, fill: r + 1 === M ? "var(--b)" : "var(--a)" })),
        ...[0, 0.5, 1].flatMap(v => [svg("text", { x: X(v), y: Y(0) + 18, "text-anchor": "middle" }, v),
          svg("text", { x: X(0) - 8, y: Y(v) + 4, "text-anchor": "end" }, v)]),
        svg("text", { x: X(0.5), y: Y(0) + 38, "text-anchor": "middle" }, "share of the keys met"),
        svg("text", { x: X(0) - 8, y: Y(1) - 16 }, "share of the weight found, all directions"))
      const count = met.reduce((a, c) => a + c)
      say(`In ${M} round${M > 1 ? "s" : ""} of ${b} buckets this query meets ${count} of ${n} keys and finds ${found.toFixed(2)} of its weight; of its eight ` +
        `largest weights it misses ${missed || "none"}. On average over all directions, ${keys_met[M - 1].toFixed(2)} of the keys hold ${weight_found[M - 1].toFixed(2)} of the weight.`,
        { buckets: b, rounds: M, degrees, found, missed, keys: keys_met[M - 1], weight: weight_found[M - 1] })
    }
    draw()
  },
}
