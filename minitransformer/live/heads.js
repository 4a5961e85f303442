// A table of heads and tokens for the token that is pointed at, or chosen with a key; a slider goes through the blocks.
{
  compute({ tokens, shape, A }, block, token) {
    const [, H, n] = shape, bytes = atob(A), at = (h, j) => bytes.charCodeAt(((block * H + h) * n + token) * n + j) / 255
    const rows = [...Array(H).keys()].map(h => tokens.map((_, j) => at(h, j)))
    let best = { weight: -1 }, rest = 0
    rows.forEach((row, head) => row.forEach((weight, key) => {
      if (tokens[key] === "[CLS]" || tokens[key] === "[SEP]") rest += weight / H
      else if (key !== token && weight > best.weight) best = { head, key, weight }
    }))
    return { A: rows, ...best, rest }
  },
  build({ data, svg, slider, typed, say, stage }, compute) {
    const { tokens, shape: [B, H, n] } = data, w = 24, h = 19, left = 60, top = 78, W = left + n * w + 12
    let token = tokens.indexOf("it"), held = token
    const block = slider("block", [1, B, 1, 3], b => b, draw)
    const art = svg("svg", { viewBox: `0 0 ${W} ${top + H * h + 6}`, tabindex: 0, role: "application", style: "max-width:34rem",
      "aria-label": "tokens above, heads below: the left and right arrow keys choose a token, the up and down keys a block" })
    const names = tokens.map((word, j) => svg("text", { transform: `translate(${left + (j + 0.7) * w} ${top - 8}) rotate(-50)`,
      style: "cursor:pointer" }, word))
    const cells = [...Array(H * n).keys()].map(k => svg("rect", { x: left + k % n * w, y: top + Math.floor(k / n) * h,
      width: w - 2, height: h - 2, rx: 2, stroke: "var(--line)" }))
    const heads = [...Array(H).keys()].map(k => svg("text", { x: left - 8, y: top + (k + 0.75) * h, "text-anchor": "end" }, `head ${k + 1}`))
    const frame = svg("rect", { y: top - 3, width: w + 2, height: H * h + 4, fill: "none", stroke: "var(--b)", "stroke-width": 2 })
    const ring = svg("rect", { width: w + 2, height: h + 2, fill: "none", stroke: "var(--b)", "stroke-width": 3 })
    art.append(...cells, ...heads, ...names, frame, ring)
    stage.append(art)
    const column = event => {
      const box = art.getBoundingClientRect(), j = Math.floor(((event.clientX - box.x) * W / box.width - left) / w)
      return j >= 0 && j < n ? j : held
    }
    const choose = j => { if (j !== token) { token = j; draw() } }
    art.onpointermove = event => choose(column(event))
    art.onpointerdown = event => choose(held = column(event))
    art.onpointerleave = () => choose(held)
    typed(art, { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }, way => {
      held = token = (held + way[0] + n) % n
      block.value = Math.max(1, Math.min(B, block.value + way[1]))
      draw()
    })
    function draw() {
      const { A, head, key, weight, rest } = compute(block.value - 1, token)
      cells.forEach((cell, k) => cell.setAttribute("fill",
        `color-mix(in srgb, var(--a) ${100 * A[Math.floor(k / n)][k % n]}%, transparent)`))
      names.forEach((name, j) => name.setAttribute("font-weight", j === token ? 700 : 400))
      names.forEach((name, j) => { name.style.fill = j === token ? "var(--b)" : "" })
      frame.setAttribute("x", left + token * w - 2)
      ring.setAttribute("x", left + key * w - 2)
      ring.setAttribute("y", top + head * h - 2)
      say(`In block ${block.value}, “${tokens[token]}” gives its largest weight to another word in head ${head + 1}: ` +
        `${weight.toFixed(2)} to “${tokens[key]}”. On average ${rest.toFixed(2)} of a head's weight rests on [CLS] and [SEP].`,
        { block: block.value, token: tokens[token], head: head + 1, key: tokens[key], weight, rest })
    }
    draw()
  },
}
