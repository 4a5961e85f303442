// A grid of queries and keys to paint on; what the layers add to it is pale. The row of the chosen query is framed.
{
  compute(data, rows, query, layers) {
    const n = rows.length, sees = rows.map(row => [...row].map(x => x === "1"))
    const reach = from => { // after each layer: who is known, in widening circles
      const distance = Array(n).fill(Infinity)
      let edge = [from], step = 0
      distance[from] = 0
      while (edge.length) {
        step++
        const next = []
        for (const i of edge) for (let j = 0; j < n; j++) if (sees[i][j] && distance[j] === Infinity) { distance[j] = step; next.push(j) }
        edge = next
      }
      return distance
    }
    const all = rows.map((_, i) => reach(i)), needed = Math.max(...all.flat())
    return {
      pairs: sees.flat().filter(x => x).length, needed: needed === Infinity ? null : needed, all,
      reached: [...Array(n).keys()].filter(j => all[query][j] <= layers),
    }
  },
  build({ data, svg, slider, button, dragged, typed, say, stage }, compute) {
    const names = Object.keys(data.masks), n = data.masks[names[0]].length, size = 24, left = 60, top = 30, W = left + n * size + 10
    let rows, query = 8, key = 8, name
    const layers = slider("layers", [1, 8, 1, 2], k => k, draw)
    const choices = names.map(each => button(each, () => { begin(each); draw() }))
    const cells = [...Array(n * n).keys()].map(k => svg("rect", { x: left + k % n * size, y: top + Math.floor(k / n) * size,
      width: size - 1, height: size - 1, rx: 2, stroke: "var(--line)" }))
    const frame = svg("rect", { x: left - 2, width: n * size + 3, height: size + 3, fill: "none", stroke: "var(--b)", "stroke-width": 2 })
    const cursor = svg("rect", { width: size + 3, height: size + 3, fill: "none", stroke: "var(--b)", "stroke-width": 4 })
    const marks = [0, 5, 10, 15].flatMap(k => [
      svg("text", { x: left + (k + 0.5) * size, y: top - 8, "text-anchor": "middle" }, k),
      svg("text", { x: left - 8, y: top + (k + 0.7) * size, "text-anchor": "end" }, k)])
    const art = svg("svg", { viewBox: `0 0 ${W} ${top + n * size + 26}`, tabindex: 0, role: "application", style: "max-width:32rem;touch-action:none",
      "aria-label": "mask of queries and keys: arrow keys move, the space bar paints" }, ...cells, frame, cursor, ...marks,
      svg("text", { x: 0, y: top + n * size / 2 }, "query i"), svg("text", { x: left + n * size / 2, y: top + n * size + 20, "text-anchor": "middle" }, "key j"))
    stage.append(art)
    function begin(each) { name = each; rows = [...data.masks[each]] }
    function put(i, j, bit) {
      rows[i] = rows[i].slice(0, j) + bit + rows[i].slice(j + 1)
      name = ""
    }
    let brush
    const place = event => {
      const box = art.getBoundingClientRect(), scale = W / box.width
      return [((event.clientY - box.y) * scale - top) / size, ((event.clientX - box.x) * scale - left) / size].map(Math.floor)
    }
    const paint = event => {
      const [i, j] = place(event)
      if (i < 0 || j < 0 || i >= n || j >= n) return
      brush ??= rows[i][j] === "1" ? "0" : "1"
      ;[query, key] = [i, j]
      put(i, j, brush)
      draw()
    }
    dragged(art, event => { if (event.type === "pointerdown") brush = undefined; paint(event) })
    typed(art, { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0], " ": [0, 0] }, (way, key) => {
      if (key === " ") put(query, key, rows[query][key] === "1" ? "0" : "1")
      ;[query, key] = [query + way[0], key + way[1]].map(k => Math.max(0, Math.min(n - 1, k)))
      draw()
    })
    function draw() {
      const { pairs, reached, needed, all } = compute(rows, query, layers.value)
      cells.forEach((cell, k) => {
        const i = Math.floor(k / n), j = k % n, seen = rows[i][j] === "1"
        cell.setAttribute("fill", seen ? "var(--a)" : all[i][j] <= layers.value ? "color-mix(in srgb, var(--a) 30%, transparent)" : "transparent")
      })
      frame.setAttribute("y", top + query * size - 2)
      cursor.setAttribute("x", left + key * size - 2)
      cursor.setAttribute("y", top + query * size - 2)
      choices.forEach(choice => choice.setAttribute("aria-pressed", choice.textContent === name))
      say(`The mask has ${pairs} of ${n * n} pairs. After ${layers.value} layer${layers.value > 1 ? "s" : ""} query ${query} has heard of ${reached.length} of ${n} ` +
        `tokens. ` + (needed === null ? "Some tokens never hear of some others, however many layers there are."
          : `After ${needed} layer${needed === 1 ? "" : "s"} everyone has heard of everyone.`), { pairs, query, layers: layers.value, reached: reached.length, needed: needed ?? "never" })
    }
    begin(names[1])
    draw()
  },
}
