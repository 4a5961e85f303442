// Two matrices of weights for seven words, as it was and as it is; framed are the rows that give a word another weight.
{
  compute({ sentence, q, k, W_2, R }, source, words, came_from) {
    const n = sentence.length, d = W_2.length, sum = (m, f) => [...Array(m).keys()].reduce((s, c) => s + f(c), 0)
    const A = words => words.map((asks, i) => {
      const compared = words.map(asked => sum(d, c => q[asks][c] * k[asked][c]) / Math.sqrt(d))
      const alone = words.map((_, j) => sum(d, c => Math.max(q[asks][c], 0) * W_2[c][j]))
      const S = { "dot product": compared, dense: alone, random: R[i], gated: compared.map((s, j) => (s + alone[j]) / 2) }[source]
      const top = Math.max(...S), E = S.map(s => Math.exp(s - top)), total = sum(n, j => E[j])
      return E.map(e => e / total)
    })
    const before = A(sentence), now = A(words)
    const changed = now.map((row, i) => Number(row.some((w, j) => Math.abs(w - before[came_from[i]][came_from[j]]) > 1e-9)))
    return { before, now, changed }
  },
  build({ data, svg, make, button, typed, say, stage }, compute) {
    const { vocabulary, sentence } = data, n = sentence.length, size = 30, left = 46, top = 50, W = left + n * size + 4
    const kinds = ["dot product", "dense", "random", "gated"]
    let source = kinds[0], place = 4, words, came_from
    const begin = () => { words = [...sentence]; came_from = words.map((_, i) => i) }
    const choices = kinds.map(kind => button(kind, () => { source = kind; draw() }))
    const row = make("div", { class: "live-controls", style: "margin-top:.4em" })
    const other = make("button", { type: "button", onclick: () => { words[place] = (words[place] + 1) % vocabulary.length; draw() } })
    const swap = make("button", { type: "button", onclick: () => {
      const next = (place + 1) % n
      for (const list of [words, came_from]) [list[place], list[next]] = [list[next], list[place]]
      place = next
      draw()
    } })
    row.append(other, swap, make("button", { type: "button", onclick: () => { begin(); draw() } }, "begin again"))
    const style = "flex:1 1 15rem;max-width:19rem", box = `0 0 ${W} ${top + n * size + 6}`
    const then = svg("svg", { viewBox: box, role: "img", style, "aria-label": "weights as they were, a row for each word" })
    const art = svg("svg", { viewBox: box, tabindex: 0, role: "application", style: `${style};cursor:pointer`,
      "aria-label": "weights as they are: point at a word, or choose it with the arrow keys" })
    stage.append(row, make("div", { style: "display:flex;flex-wrap:wrap;gap:0 1.5rem" }, then, art))
    art.onpointerdown = event => {
      const frame = art.getBoundingClientRect()
      place = Math.max(0, Math.min(n - 1, Math.floor(((event.clientX - frame.x) * W / frame.width - left) / size)))
      draw()
    }
    typed(art, { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 }, way => {
      place = (place + way + n) % n
      draw()
    })
    const matrix = (A, words, marked) => A.flatMap((row, i) => row.map((w, j) => svg("rect", { x: left + j * size, y: top + i * size,
      width: size - 2, height: size - 2, rx: 2, stroke: "var(--line)", fill: `color-mix(in srgb, var(--a) ${Math.round(100 * Math.min(1, 1.6 * w))}%, transparent)` })))
      .concat(words.flatMap((word, i) => {
        const style = i === marked ? "fill:var(--b);font-weight:700" : ""
        return [svg("text", { x: left - 6, y: top + i * size + 19, "text-anchor": "end", style }, vocabulary[word]),
          svg("text", { transform: `translate(${left + i * size + 11} ${top - 8}) rotate(-50)`, style }, vocabulary[word])]
      }))
    function draw() {
      const { before, now, changed } = compute(source, words, came_from), count = changed.reduce((a, b) => a + b)
      choices.forEach(choice => choice.setAttribute("aria-pressed", choice.textContent === source))
      other.textContent = `replace “${vocabulary[words[place]]}” by another word`
      swap.textContent = place + 1 < n ? `swap it with “${vocabulary[words[place + 1]]}”` : `swap it with the first, “${vocabulary[words[0]]}”`
      then.replaceChildren(...matrix(before, sentence, -1), svg("text", { x: 0, y: 12, style: "font-weight:600" }, "before"))
      art.replaceChildren(...matrix(now, words, place), svg("text", { x: 0, y: 12, style: "font-weight:600" }, "now"),
        ...changed.flatMap((yes, i) => yes ? [svg("rect", { x: left - 2, y: top + i * size - 2, width: n * size + 1, height: size + 1, rx: 3,
          fill: "none", stroke: "var(--b)", "stroke-width": 2 })] : []))
      const others = words.filter((word, i) => word !== sentence[came_from[i]]).length, moved = came_from.filter((from, i) => from !== i).length
      const edits = [others ? `${others} of ${n} words ${others === 1 ? "has" : "have"} been replaced` : "", moved ? `${moved} words have moved` : ""].filter(Boolean)
      say((edits.length ? edits.join(", and ") : "The sentence is as it was") + `. Attention by ${{ "dot product": "dot product", dense: "the dense synthesizer",
        random: "the random synthesizer", gated: "the gated mixture" }[source]}: ${count} of ${n} rows give some word a new weight.`,
        { source, others, moved, changed: count, words: words.map(word => vocabulary[word]).join(" ") })
    }
    begin()
    draw()
  },
}
