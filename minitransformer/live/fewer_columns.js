// A matrix, what fewer columns make of it, and its singular values. They come from rotations of pairs of columns (Jacobi).
{
  compute({ heads }, head, sharpness, k) {
    const { Q, K } = heads[head], n = K.length, dot = (a, b) => a.reduce((sum, x, e) => sum + x * b[e], 0)
    const attend = keys => Q.map(q => {
      const S = keys.map(key => sharpness * dot(q, key) / Math.sqrt(q.length)), top = Math.max(...S)
      const E = S.map(s => Math.exp(s - top)), total = E.reduce((a, b) => a + b)
      return E.map(e => e / total)
    })
    const A = attend(K), s = n / k, means = [...Array(k).keys()].map(b =>
      K[0].map((_, e) => K.slice(b * s, b * s + s).reduce((sum, key) => sum + key[e] / s, 0)))
    const merged = attend(means).map(row => K.map((_, j) => row[Math.floor(j / s)] / s))
    // columns of A V, turned in pairs until they are orthogonal: their lengths are the singular values
    const U = K.map((_, j) => A.map(row => row[j])), V = K.map((_, j) => K.map((_, i) => +(i === j)))
    const turn = (M, p, q, cos, sin) => M[p].forEach((x, i) => {
      const y = M[q][i]
      M[p][i] = cos * x - sin * y
      M[q][i] = sin * x + cos * y
    })
    for (let sweep = 0, off = 1; off > 1e-14 && sweep < 40; sweep++) {
      off = 0
      for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
        const a = dot(U[p], U[p]), b = dot(U[q], U[q]), c = dot(U[p], U[q]), angle = Math.abs(c) / Math.sqrt(a * b || 1)
        if (angle < 1e-15 || Math.abs(c) < 1e-300) continue
        off = Math.max(off, angle)
        const z = (b - a) / (2 * c), t = (z < 0 ? -1 : 1) / (Math.abs(z) + Math.hypot(1, z)), cos = 1 / Math.hypot(1, t)
        turn(U, p, q, cos, cos * t)
        turn(V, p, q, cos, cos * t)
      }
    }
    const length = M => Math.sqrt(M.flat().reduce((sum, x) => sum + x * x, 0)), sizes = U.map(u => length([u]))
    const order = [...sizes.keys()].sort((p, q) => sizes[q] - sizes[p]), first = order.slice(0, k), sigma = order.map(r => sizes[r])
    const best = A.map((_, i) => K.map((_, j) => first.reduce((sum, r) => sum + U[r][i] * V[r][j], 0)))
    const error = M => length(A.map((row, i) => row.map((x, j) => x - M[i][j]))) / length(A), total = list => list.reduce((a, b) => a + b)
    return {
      A, fewer: { best, merged }, sigma, best: error(best), merged: error(merged), held: total(sigma.slice(0, k)) / total(sigma),
      used: total(A.map(row => Math.exp(-total(row.map(a => a * Math.log(Math.max(a, 1e-300))))))) / n,
    }
  },
  build({ data, svg, slider, button, box, say, stage }, compute) {
    const names = Object.keys(data.heads), n = data.heads[names[0]].K.length, size = 7.5, gap = 16, top = 26, left = 24, W = left + 2 * n * size + gap
    let head = "neighbours alike"
    const sharp = slider("sharpness", [-3, 3, 0.5, 1], t => (2 ** t).toFixed(2), draw)
    const columns = slider("columns k", [0, data.columns.length - 1, 1, 4], c => data.columns[c], draw)
    const choices = names.map(each => button(each, () => { head = each; draw() }))
    const merge = box("merge neighbours", false, draw)
    const side = n * size, second = left + side + gap, low = top + side + 122, high = 76, step = (W - left) / n
    const grid = x => [...Array(n * n).keys()].map(c => svg("rect", { x: x + c % n * size, y: top + Math.floor(c / n) * size, width: size, height: size }))
    const before = grid(left), after = grid(second), minuses = svg("path", { stroke: "currentColor", "stroke-width": 1.3 }), frame = x => svg("rect", { x, y: top, width: side, height: side, fill: "none", stroke: "var(--line)" })
    const bars = [...Array(n).keys()].map(r => svg("rect", { x: left + r * step + 1, width: step - 3, rx: 1.5, fill: "var(--a)" }))
    const says = svg("text", { x: second + side / 2, y: top - 9, "text-anchor": "middle" }), middle = { "text-anchor": "middle" }
    const art = svg("svg", { viewBox: `0 0 ${W} ${low + 40}`, role: "img", style: "max-width:32rem", "aria-label": "a matrix, what fewer columns make of it, and its singular values" },
      ...before, ...after, minuses, frame(left), frame(second), says, svg("text", { x: left + side / 2, y: top - 9, ...middle }, "A"),
      svg("text", { x: 14, y: top + side / 2, ...middle, transform: `rotate(-90 14 ${top + side / 2})` }, "query i"),
      ...[left, second].map(x => svg("text", { x: x + side / 2, y: top + side + 17, ...middle }, "key j")), ...bars,
      svg("line", { x1: left, x2: W, y1: low, y2: low, stroke: "currentColor" }), svg("text", { x: 14, y: low - 4, ...middle }, "σ"),
      ...[1, 6, 12, 18, 24].map(r => svg("text", { x: left + (r - 0.5) * step, y: low + 17, ...middle }, r)),
      svg("text", { x: (W + left) / 2, y: low + 36, ...middle }, "singular values, the largest first"))
    stage.append(art)
    function draw() {
      const k = data.columns[columns.value], s = 2 ** sharp.value, found = compute(head, s, k), most = Math.max(...found.A.flat())
      const fewer = found.fewer[merge.checked ? "merged" : "best"]
      for (const [cells, M] of [[before, found.A], [after, fewer]]) cells.forEach((cell, c) => {
        const x = M[Math.floor(c / n)][c % n] / most
        cell.setAttribute("fill", `color-mix(in srgb, var(--${x < 0 ? "b" : "a"}) ${Math.min(100, 100 * Math.abs(x))}%, transparent)`)
      })
      // in grey, a minus tells what is clearly negative
      minuses.setAttribute("d", fewer.flatMap((row, i) => row.map((x, j) =>
        x < -most / 10 ? `M${second + j * size + 2} ${top + (i + 0.5) * size}h${size - 4}` : "")).join(""))
      says.textContent = merge.checked ? `${k} mean${k > 1 ? "s" : ""} of ${n / k} neighbour${k < n ? "s" : ""}` : `best matrix of rank ${k}`
      bars.forEach((bar, r) => {
        const h = Math.max(1, found.sigma[r] / found.sigma[0] * high)
        bar.setAttribute("y", low - h)
        bar.setAttribute("height", h)
        bar.setAttribute("opacity", r < k ? 1 : 0.3)
      })
      choices.forEach(choice => choice.setAttribute("aria-pressed", choice.textContent === head))
      say(`At sharpness ${s.toFixed(2)} a query has ${found.used.toFixed(1)} of ${n} keys in use. With ${k} column${k > 1 ? "s" : ""} the best matrix is off by ` +
        `${found.best.toFixed(2)}, and means of neighbours by ${found.merged.toFixed(2)}; the first ${k > 1 ? k + " singular values hold" : "singular value holds"} ` +
        `${found.held.toFixed(2)} of their sum.`, { head, sharpness: s, k, used: found.used, best: found.best, merged: found.merged, held: found.held })
    }
    draw()
  },
}
