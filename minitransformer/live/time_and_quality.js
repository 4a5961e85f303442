// Points of time and quality, the stairs that no other point passes, and names where there is room for them.
{
  compute({ rows, bag }, n, causal, tasks) {
    const mean = list => list.reduce((a, b) => a + b, 0) / list.length
    const best = {}
    for (const task of tasks) {
      const means = rows.filter(row => row.scores[task]).map(row => mean(row.scores[task]))
      best[task] = task === "text" ? Math.min(...means) : Math.max(...means)
    }
    const quality = (row, of = mean) => {
      const shares = tasks.filter(task => row.scores[task])
        .map(task => (of(row.scores[task]) - mean(bag[task])) / (best[task] - mean(bag[task])))
      return shares.length ? mean(shares) : null
    }
    const at = ({ n: known, times }) => { // on a straight line in logarithms
      const k = known.findIndex((_, k) => known[k] <= n && n <= (known[k + 1] ?? known[k]))
      if (k < 0) return null
      if (known[k] === n) return times[k]
      const part = Math.log(n / known[k]) / Math.log(known[k + 1] / known[k])
      return times[k] * (times[k + 1] / times[k]) ** part
    }
    const numbers = rows.map((_, k) => k), able = numbers.filter(k => !causal || rows[k].causal)
    const drawn = able.filter(k => at(rows[k]) !== null && quality(rows[k]) !== null)
    const unit = at(rows.find(row => row.name === "softmax"))
    const seeds = drawn.map(k => [0, 1, 2].map(seed => quality(rows[k], scores => scores[seed]))), front = []
    let top = -Infinity
    for (const k of [...drawn].sort((i, j) => at(rows[i]) - at(rows[j]) || quality(rows[j]) - quality(rows[i])))
      if (quality(rows[k]) > top) { top = quality(rows[k]); front.push(k) }
    return {
      drawn, front, times: drawn.map(k => at(rows[k]) / unit), quality: drawn.map(k => quality(rows[k])),
      worst: seeds.map(each => Math.min(...each)), best: seeds.map(each => Math.max(...each)),
      untimed: able.filter(k => at(rows[k]) === null), unscored: able.filter(k => at(rows[k]) !== null && quality(rows[k]) === null),
    }
  },
  build({ data: { rows, tasks }, make, svg, slider, box, typed, say, stage }, compute) {
    const H = 380, left = 36, right = 12, top = 30, bottom = 42, dense = rows.findIndex(row => row.name === "softmax")
    const name = k => k === dense ? "dense" : rows[k].name.replaceAll("-", "\u2011") // no minus sign
    let chosen = dense, held = dense, places = []
    const power = slider("tokens n", [10, 16, 0.5, 14], p => Math.round(2 ** p).toLocaleString("en"), draw)
    const causal = box("has to be causal", false, draw)
    const counts = tasks.map(task => box(task, true, () => {
      if (!counts.some(each => each.checked)) counts.forEach(each => { each.checked = true })
      draw()
    }))
    counts[0].parentElement.before(make("span", {}, "what counts:"))
    const art = svg("svg", { tabindex: 0, role: "application", style: "max-width:none",
      "aria-label": "kinds of attention: to the right is slower, up has learned more; the arrow keys go from kind to kind" })
    const missing = make("p", { style: "margin:.3em 0;font-size:.9em" })
    stage.append(art, missing)
    const go = (event, hold) => {
      const { x, y } = art.getBoundingClientRect(), far = ([, a, b]) => Math.hypot(a - event.clientX + x, b - event.clientY + y)
      const near = places.toSorted((a, b) => far(a) - far(b))[0], found = far(near) < 30 ? near[0] : held
      if (hold) held = found
      if (found !== chosen) { chosen = found; draw() }
    }
    art.onpointermove = event => go(event, false)
    art.onpointerdown = event => go(event, true)
    art.onpointerleave = () => { if (chosen !== held) { chosen = held; draw() } }
    typed(art, { ArrowLeft: -1, ArrowRight: 1, ArrowUp: 1, ArrowDown: -1 }, way => {
      const order = places.toSorted((a, b) => a[1] - b[1]).map(([k]) => k)
      held = chosen = order[(order.indexOf(chosen) + way + order.length) % order.length]
      draw()
    })
    function draw() {
      const n = Math.round(2 ** power.value), counted = tasks.filter((_, k) => counts[k].checked)
      const found = compute(n, causal.checked, counted), { drawn, front, times, quality, worst, best } = found
      if (!drawn.includes(chosen)) chosen = held = dense
      const W = Math.max(300, Math.min(700, stage.clientWidth || 640)), low = Math.log10(0.7 * Math.min(...times)), high = Math.log10(1.4 * Math.max(...times))
      const X = t => left + (Math.log10(t) - low) / (high - low) * (W - left - right)
      const Y = q => top + (1.08 - Math.max(-0.2, Math.min(1.08, q))) / 1.28 * (H - top - bottom)
      places = drawn.map((k, p) => [k, X(times[p]), Y(quality[p])])
      const of = k => places[drawn.indexOf(k)], parts = []
      const line = (x1, y1, x2, y2, rest) => parts.push(svg("line", { x1, y1, x2, y2, stroke: "currentColor", ...rest }))
      for (const q of [0, 0.5, 1]) {
        line(left, Y(q), W - right, Y(q), { stroke: "var(--line)" })
        parts.push(svg("text", { x: left - 6, y: Y(q) + 4, "text-anchor": "end" }, q))
      }
      for (const t of [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30].filter(t => X(t) > left && X(t) <= W - right)) {
        line(X(t), top, X(t), H - bottom, { stroke: "var(--line)", "stroke-dasharray": t === 1 ? "" : "2 4" })
        parts.push(svg("text", { x: X(t), y: H - bottom + 16, "text-anchor": "middle" }, t))
      }
      parts.push(svg("text", { x: left, y: H - 8 }, "time over that of causal dense attention"),
        svg("text", { x: 0, y: 14 }, "learned: 0 as a bag of tokens, 1 as the best kind"))
      const stairs = front.flatMap((k, s) => s ? [[of(k)[1], of(front[s - 1])[2]], of(k).slice(1)] : [of(k).slice(1)])
      parts.push(svg("polyline", { points: stairs.join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.5 }))
      const taken = places.map(([k, x, y]) => [x, y, x, y].map((v, c) => v + (c < 2 ? -1 : 1) * (k === chosen ? 12 : 6))), names = []
      stairs.slice(1).forEach(([x, y], s) => {
        const [a, b] = stairs[s]
        taken.push([Math.min(a, x) - 1, Math.min(b, y) - 1, Math.max(a, x) + 1, Math.max(b, y) + 1])
      })
      places.forEach(([k, x, y], p) => {
        const ahead = front.includes(k), hue = k === dense ? "var(--b)" : "var(--a)"
        line(x, Y(worst[p]), x, Y(best[p]), { stroke: hue, "stroke-width": ahead || k === chosen ? 2.5 : 1, "stroke-opacity": ahead || k === chosen ? 1 : 0.45 })
        const look = { stroke: hue, "stroke-width": 2, fill: rows[k].causal ? hue : "none" }
        parts.push(k === dense ? svg("rect", { x: x - 6, y: y - 6, width: 12, height: 12, ...look }) : svg("circle", { cx: x, cy: y, r: ahead ? 6 : 4, ...look }))
        if (k === chosen) parts.push(svg("circle", { cx: x, cy: y, r: 11, fill: "none", stroke: "var(--b)", "stroke-width": 2 }))
      })
      for (const k of new Set([chosen, ...front, dense, ...drawn.toSorted((i, j) => of(i)[2] - of(j)[2])])) { // first those that matter
        const [, x, y] = of(k) ?? [], wide = 7.4 * name(k).length, must = k === chosen || k === dense || front.includes(k)
        if (x === undefined) continue
        const spots = [9, 14, 22, 34].flatMap(r => [[x + r, y + 4], [x - r - wide, y + 4], [x - wide / 2, y - r], [x - wide / 2, y + r + 9],
          [x + r / 2, y - r], [x - r / 2 - wide, y - r], [x + r / 2, y + r + 9], [x - r / 2 - wide, y + r + 9]]).slice(0, must ? 32 : 8)
          .map(([a, b]) => [a, b - 11, a + wide, b + 3]).filter(([a, b, c, d]) => a > left && c < W && b > top - 12 && d < H - bottom + 2)
        const over = ([a, b, c, d]) => taken.reduce((sum, [e, f, g, h]) =>
          sum + Math.max(0, Math.min(c, g) - Math.max(a, e)) * Math.max(0, Math.min(d, h) - Math.max(b, f)), 0)
        const cost = (spot, s) => over(spot) + 5 * s // a name may cross a line rather than stand far away
        const costs = spots.map(cost), free = spots[costs.indexOf(Math.min(...costs))]
        if (over(free) && !must) continue
        taken.push(free)
        names.push(svg("text", { x: free[0], y: free[3] - 3, style: must ? "font-weight:600" : "font-size:12px;opacity:.8" }, name(k)))
      }
      art.setAttribute("viewBox", `0 0 ${W} ${H}`)
      art.replaceChildren(...parts, ...names)
      const listed = [["would have taken too long", found.untimed.filter(k => rows[k].stopped === "time")],
        ["would have needed more than 2 GiB", found.untimed.filter(k => rows[k].stopped === "memory")],
        ["not measured yet", found.untimed.filter(k => !rows[k].stopped)], ["can't be causal", causal.checked ? rows.map((_, k) => k).filter(k => !rows[k].causal) : []],
        ["did not do the chosen tasks", found.unscored]].filter(([, some]) => some.length)
      missing.textContent = listed.length ? "Not drawn: " + listed.map(([why, some]) => `${some.map(name).join(", ")} (${why})`).join("; ") + "." : ""
      const p = drawn.indexOf(chosen), passed = drawn.filter((_, q) => times[q] < times[p] && quality[q] > quality[p]).length
      say(`At ${n.toLocaleString("en")} tokens ${front.length} of ${drawn.length} kinds are on the front: ${front.map(name).join(", ")}. ` +
        `The ring is around ${name(chosen)}: ${times[p].toPrecision(2)} of the time of dense attention, learned ${quality[p].toFixed(2)}, with seeds ` +
        `from ${worst[p].toFixed(2)} to ${best[p].toFixed(2)}; ${passed || "no"} kind${passed > 1 ? "s are" : " is"} both faster and better.`,
        { n, causal: causal.checked, tasks: counted, front: front.map(name), kind: name(chosen), time: times[p], quality: quality[p], passed })
    }
    draw()
    new ResizeObserver(draw).observe(stage)
  },
}
