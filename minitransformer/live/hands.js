// The product of a turned query with every place, as a sum of the cosines of the hands that are left; each hand has a box.
{
  compute({ places, omega }, hands, query, shift) {
    const products = [...Array(places).keys()].map(k =>
      omega.reduce((sum, w, f) => hands[f] ? sum + Math.cos(w * (query + shift - k)) : sum, 0))
    const top = list => list.indexOf(Math.max(...list)), peak = top(products)
    const other = top(products.map((p, k) => k === peak ? -Infinity : Math.round(1e9 * p))) // of two that are alike, the first
    return { products, peak, other, margin: products[peak] - products[other] }
  },
  build({ data, svg, slider, box, say, stage }, compute) {
    const n = data.places, W = 400, left = 28, top = 34, H = 170, X = k => left + k / (n - 1) * (W - left - 8)
    const i = slider("query i", [12, n - 9, 1, 70], v => v, draw), j = slider("turned by o", [-8, 8, 1, -1], v => v, draw)
    const boxes = data.omega.map(w => box(`ω = ${+w.toPrecision(2)}`, true, draw))
    const art = svg("svg", { viewBox: `0 0 ${W} ${top + H + 44}`, role: "img", style: "max-width:32rem", "aria-label": "the product of the query with each place, and the wave of each hand" })
    const Y = p => top + H / 2 * (1 - p)
    const waves = data.omega.map(() => svg("path", { fill: "none", stroke: "currentColor", opacity: 0.28 }))
    const curve = svg("path", { fill: "none", stroke: "var(--a)", "stroke-width": 2.2, "stroke-linejoin": "round" })
    const asks = svg("line", { y1: top - 12, y2: top + H, stroke: "currentColor", "stroke-dasharray": "3 4" })
    const asked = svg("text", { y: top - 18, "text-anchor": "middle" })
    const peak = svg("circle", { r: 6, fill: "var(--a)" }), other = svg("rect", { width: 11, height: 11, fill: "none", stroke: "var(--b)", "stroke-width": 2.5 })
    const ends = [1, -1].map(end => svg("text", { x: left - 8, y: Y(end) + 4, "text-anchor": "end" }))
    art.append(svg("line", { x1: left, x2: W - 8, y1: Y(0), y2: Y(0), stroke: "var(--line)" }), svg("text", { x: left - 8, y: Y(0) + 4, "text-anchor": "end" }, 0), ...ends,
      ...[0, 20, 40, 60].map(k => svg("text", { x: X(k), y: top + H + 20, "text-anchor": "middle" }, k)),
      svg("text", { x: (W + left) / 2, y: top + H + 40, "text-anchor": "middle" }, "key j"), svg("text", { x: 0, y: 14 }, "product"), ...waves, asks, asked, curve, other, peak)
    stage.append(art)
    const line = points => points.length ? "M" + points.map(([x, y]) => `${X(x).toFixed(1)} ${Y(y).toFixed(1)}`).join("L") : ""
    function draw() {
      const hands = boxes.map(box => box.checked), count = hands.filter(on => on).length, query = i.value, shift = j.value, found = compute(hands, query, shift)
      waves.forEach((wave, f) => wave.setAttribute("d", line(hands[f] && count > 1
        ? [...Array(4 * n - 3).keys()].map(x => [x / 4, Math.cos(data.omega[f] * (query + shift - x / 4))]) : [])))
      curve.setAttribute("d", line(found.products.map((p, k) => [k, p / (count || 1)])))
      asks.setAttribute("x1", X(query))
      asks.setAttribute("x2", X(query))
      asked.setAttribute("x", X(query))
      asked.textContent = `query at ${query}`
      ends.forEach((end, k) => { end.textContent = ["", "−"][k] + count })
      for (const [mark, k, off] of [[peak, found.peak, 0], [other, found.other, 5.5]]) {
        mark.setAttribute(off ? "x" : "cx", X(k) - off)
        mark.setAttribute(off ? "y" : "cy", Y(found.products[k] / (count || 1)) - off)
        mark.setAttribute("visibility", count ? "visible" : "hidden")
      }
      const away = Math.abs(found.other - found.peak), margin = found.margin < 0.005 ? "less than 0.005" : found.margin.toFixed(2)
      say(count ? `With ${count} hand${count > 1 ? "s" : ""} the product is largest at place ${found.peak}, where it is ${count}. The best of all other places is ` +
        `${found.other}, ${away} step${away > 1 ? "s" : ""} away, where it is ${margin} lower.`
        : "No hand is left, and all places look alike.", { hands: count, peak: found.peak, other: found.other, margin: found.margin })
    }
    draw()
  },
}
