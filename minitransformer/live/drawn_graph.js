// A graph to draw edges in: circles say what share of a chosen node's row is theirs, and lines how alike all rows become.
{
  compute({ X, a_1, a_2 }, links, node, layers, learned) {
    const n = X.length, LAYERS = 32, dot = (a, b) => a.reduce((sum, x, c) => sum + x * b[c], 0)
    const sees = X.map((_, i) => X.map((_, j) => i === j))
    for (const [i, j] of links) sees[i][j] = sees[j][i] = true
    const times = (P, rows) => P.map(p => rows[0].map((_, c) => p.reduce((sum, w, j) => sum + w * rows[j][c], 0)))
    const spread = rows => {
      const mean = rows[0].map((_, c) => rows.reduce((sum, row) => sum + row[c], 0) / n)
      return Math.sqrt(rows.reduce((sum, row) => sum + row.reduce((s, x, c) => s + (x - mean[c]) ** 2, 0), 0) / n)
    }
    const matrix = rows => sees.map((seen, i) => {
      const score = j => { const s = dot(rows[i], a_1) + dot(rows[j], a_2); return s > 0 ? s : 0.2 * s }
      const S = seen.map((yes, j) => yes ? learned ? score(j) : 0 : -Infinity), top = Math.max(...S)
      const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      return E.map(e => e / total)
    })
    let rows = X, shares = X.map((_, i) => X.map((_, j) => +(i === j))), weights
    const left = [spread(X)]
    for (let layer = 1; layer <= LAYERS; layer++) {
      const P = matrix(rows)
      weights ??= P
      if (layer <= layers) shares = times(P, shares)
      left.push(spread(rows = times(P, rows)))
    }
    return { shares: shares[node], heard: shares[node].filter(s => s > 0).length, left: left.map(l => l / left[0]), weights }
  },
  build({ data, svg, slider, button, typed, say, stage }, compute) {
    const n = data.X.length, W = 350, H = 240, R = 19, at = data.places
    let links = [...data.links], node = 0, other = 1, learned = false, keys = false, from, moved
    const layers = slider("layers L", [0, 32, 1, 3], k => k, draw)
    const kinds = ["convolution", "graph attention"].map((name, k) => button(name, () => { learned = k === 1; draw() }))
    button("begin again", () => { links = [...data.links]; draw() })
    stage.style = "display:flex;flex-wrap:wrap;gap:0 1.2em"
    const size = "flex:1 1 18rem;min-width:0;max-width:26rem;"
    const lines = svg("g", { stroke: "currentColor" }), rubber = svg("line", { stroke: "var(--b)", "stroke-width": 3, "stroke-dasharray": "4 4" })
    const circles = at.map(([cx, cy]) => svg("circle", { cx, cy, r: R }))
    const shown = at.map(([x, y]) => svg("text", { x, y: y + 5, "text-anchor": "middle" }))
    const names = at.map(([x, y], j) => {
      const [dx, dy] = [x - (j < 5 ? 86 : 264), y - 120].map(d => d / 66 * (R + 12))
      return svg("text", { x: x + (dx || 0), y: y + dy + 5, "text-anchor": "middle", style: "font-weight:600" }, j)
    })
    for (const j of [4, 5]) { names[j].setAttribute("x", at[j][0]); names[j].setAttribute("y", at[j][1] - R - 6) }
    const ring = svg("circle", { r: R + 4, fill: "none", stroke: "var(--b)", "stroke-width": 2, "stroke-dasharray": "3 3" })
    const art = svg("svg", { viewBox: `0 0 ${W} ${H}`, tabindex: 0, role: "application", style: size + "touch-action:none;cursor:pointer",
      "aria-label": "graph: drag from node to node to draw an edge, or to take it away; the left and right arrow keys choose the node that " +
        "looks, the up and down keys another one, and the space bar draws the edge between them or takes it away" },
      lines, rubber, ...circles, ring, ...shown, ...names,
      svg("text", { x: W / 2, y: H - 2, "text-anchor": "middle" }, "in the circles: % of the framed node's row"))
    const low = 3.2, left = 44, X = k => left + k * (W - left - 12) / 32, Y = l => 26 + Math.min(low, -Math.log10(Math.max(l, 1e-9))) * 56
    const curves = ["a", "b"].map((hue, k) => svg("polyline", { fill: "none", stroke: `var(--${hue})`, "stroke-width": 2.5,
      "stroke-dasharray": k ? "6 4" : "" }))
    const dot = svg("circle", { r: 6, stroke: "currentColor" })
    const chart = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", style: size, "aria-label": "what is left of what told the rows apart, by layer" },
      ...[1, 0.1, 0.01, 0.001].flatMap(l => [svg("line", { x1: left, x2: W - 12, y1: Y(l), y2: Y(l), stroke: "var(--line)" }),
        svg("text", { x: left - 6, y: Y(l) + 5, "text-anchor": "end" }, l)]),
      ...[0, 8, 16].map(k => svg("text", { x: X(k), y: Y(10 ** -low) + 16, "text-anchor": "middle" }, k)),
      svg("text", { x: X(32), y: Y(10 ** -low) + 16, "text-anchor": "end" }, "32 layers"),
      svg("text", { x: left, y: 12 }, "left of what told the rows apart"),
      ...["convolution", "graph attention"].flatMap((name, k) => [svg("line", { x1: left + 125 * k, x2: left + 30 + 125 * k, y1: H - 7,
        y2: H - 7, stroke: `var(--${"ab"[k]})`, "stroke-width": 2.5, "stroke-dasharray": k ? "6 4" : "" }),
        svg("text", { x: left + 36 + 125 * k, y: H - 2 }, name)]), ...curves, dot)
    stage.append(art, chart)
    const same = (i, j) => ([a, b]) => a === i && b === j || a === j && b === i
    function toggle(i, j) {
      links = links.some(same(i, j)) ? links.filter(link => !same(i, j)(link)) : [...links, [i, j]]
    }
    const place = event => {
      const box = art.getBoundingClientRect()
      return [(event.clientX - box.x) * W / box.width, (event.clientY - box.y) * H / box.height]
    }
    const near = ([x, y]) => {
      const far = at.map(([a, b]) => Math.hypot(a - x, b - y)), j = far.indexOf(Math.min(...far))
      return far[j] < R + 8 ? j : undefined
    }
    const edge = ([x, y]) => links.find(([i, j]) => {
      const [ax, ay] = at[i], [dx, dy] = [at[j][0] - ax, at[j][1] - ay]
      const t = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy)))
      return Math.hypot(ax + t * dx - x, ay + t * dy - y) < 9
    })
    art.onpointerdown = event => {
      keys = false
      from = near(place(event))
      if (from === undefined) { // beside the nodes: an edge that is touched goes
        const touched = edge(place(event))
        if (touched) { links = links.filter(link => link !== touched); draw() }
      } else art.setPointerCapture(event.pointerId)
    }
    art.onpointermove = event => {
      if (from === undefined) return
      const [x2, y2] = place(event)
      for (const [name, value] of Object.entries({ x1: at[from][0], y1: at[from][1], x2, y2 })) rubber.setAttribute(name, value)
    }
    art.onpointerup = art.onpointercancel = event => {
      if (from === undefined) return
      const to = event.type === "pointerup" ? near(place(event)) : undefined
      if (to === from) node = from
      else if (to !== undefined) toggle(from, to)
      from = undefined
      for (const name of ["x1", "y1", "x2", "y2"]) rubber.removeAttribute(name)
      draw()
    }
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], " ": [0, 0] }, (way, key) => {
      keys = true
      node = (node + way[0] + n) % n
      other = (other + way[1] + n) % n
      if (other === node) other = (other + (way[1] || 1) + n) % n
      if (key === " ") toggle(node, other)
      draw()
    })
    function draw() {
      const both = [false, true].map(each => compute(links, node, layers.value, each)), { shares, heard, left, weights } = both[+learned]
      lines.replaceChildren(...links.map(([i, j]) => { // from rim to rim
        const [dx, dy] = [0, 1].map(c => at[j][c] - at[i][c]), r = R / Math.hypot(dx, dy)
        return svg("line", { x1: at[i][0] + r * dx, y1: at[i][1] + r * dy, x2: at[j][0] - r * dx, y2: at[j][1] - r * dy,
          "stroke-width": 1 + 7 * Math.max(weights[i][j], weights[j][i]), "stroke-opacity": 0.45 })
      }))
      circles.forEach((circle, j) => {
        circle.style.fill = `color-mix(in srgb, var(--a) ${Math.min(75, 150 * shares[j])}%, transparent)`
        circle.setAttribute("stroke", j === node ? "var(--b)" : "currentColor")
        circle.setAttribute("stroke-width", j === node ? 4 : 1)
        shown[j].textContent = shares[j] ? Math.round(100 * shares[j]) || "<1" : ""
      })
      ring.setAttribute("visibility", keys ? "visible" : "hidden")
      ring.setAttribute("cx", at[other][0])
      ring.setAttribute("cy", at[other][1])
      kinds.forEach((kind, k) => kind.setAttribute("aria-pressed", learned === (k === 1)))
      curves.forEach((curve, k) => curve.setAttribute("points", both[k].left.map((l, layer) => `${X(layer)},${Y(l)}`).join(" ")))
      const L = layers.value
      dot.setAttribute("cx", X(L))
      dot.setAttribute("cy", Y(left[L]))
      dot.style.fill = learned ? "var(--b)" : "var(--a)"
      const part = x => x < 0.001 ? "less than 0.1%" : `${(100 * x).toFixed(x < 0.1 ? 1 : 0)}%`
      say(`After ${L} layer${L === 1 ? "" : "s"} of ${learned ? "graph attention" : "convolution"} node ${node} has something from ${heard} of ${n} nodes, ` +
        `and ${part(shares[node])} of its row is its own. Of what told the rows apart ${part(left[L])} is left` +
        (L ? `; the last layer kept ${(left[L] / left[L - 1]).toFixed(2)} of what it found.` : "."),
        { node, layers: L, learned, edges: links.length, heard, own: shares[node], left: left[L] })
    }
    draw()
  },
}
