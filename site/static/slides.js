// A chapter as slides: what one would write on a board, in the order of the text. Under its heading stands an equation, a cell, a figure
// or a box, with the sentence that asks for it or leads to it. What a cell prints comes one step after the cell, for a guess in between.
{
  const chapter = document.querySelector("article.bd-article:has(#what-we-know-now) > section")
  const STOPS = ".math, .cell, blockquote, ul, ol, dl, .pst-scrollable-table-container, [class*='highlight-']"
  const KEYS = { ArrowRight: 1, PageDown: 1, " ": 1, ArrowLeft: -1, PageUp: -1, Home: -Infinity, End: Infinity }

  const flat = section => [...section.children].flatMap(child => child.matches("section") ? flat(child) : [child])
  const says = element => element.textContent.replace(/#$/, "").trim()
  const leads = p => /[:,]$|\?|Before you/.test(says(p)) || p.firstChild.nodeName === "STRONG"
  const plain = parts => parts.map(part => [part, "on"])

  // The slides of a cell, under what stands before it. Code that draws is not shown, nor are imports.
  function ofCell(above, cell) {
    const output = cell.querySelector(".cell_output")
    if (output?.querySelector("figure, img")) {
      const asks = above.filter(part => part.matches("p") && says(part).includes("?"))
      return [...asks.length ? [plain(above)] : [], [...plain(above.filter(part => !part.matches("p"))), [cell, "on only-output"]]]
    }
    if (output) return [[...plain(above), [cell, "on only-input"]], plain([...above, cell])]
    return /^(import|from) /.test(says(cell)) ? [] : [plain([...above, cell])]
  }

  // All slides of the chapter, up to its exercises: of each the elements that are on, and how.
  function slides() {
    const found = [plain([...chapter.querySelectorAll(":scope > :is(h1, .question, p:has(.emblem))")])]
    let head = [], before = [], last
    for (const block of flat(chapter)) {
      const follows = last?.matches(".math") && (block.matches(".math") || block.matches("p") && /^[a-z]/.test(says(block)))
      const summary = head.some(part => says(part) === "What we know now")
      if (block.matches("h2, h3")) {
        if (/^(Exercises|New symbols)$/.test(says(block))) break
        head = [block], before = []
      } else if (block.matches(".figure-caption") || follows || summary && last === found.at(-1).at(-1)[0] && block.matches("p, ul, ol")) found.at(-1).push([block, "on"])
      else if (block.matches("p") && !summary) before = leads(block) ? [block] : []
      else if (block.matches(summary ? "p, ul, ol, .cell" : STOPS)) {
        found.push(...block.matches(".cell") ? ofCell([...head, ...before], block) : [plain([...head, ...before, block])])
        before = []
      } else continue
      last = block
    }
    return found
  }

  if (chapter) {
    let all = [], at = 0
    const button = (textContent, ariaLabel, onclick) => Object.assign(document.createElement("button"), { type: "button", textContent, ariaLabel, onclick })
    const bar = document.createElement("div"), place = document.createElement("span")
    bar.className = "slides-bar"
    bar.append(button("←", "slide before", () => go(at - 1)), place, button("→", "next slide", () => go(at + 1)), button("Leave", "back to the page", leave))
    place.role = "status"

    function show(on, address) {
      chapter.querySelectorAll(".on").forEach(part => part.classList.remove("on", "only-input", "only-output"))
      document.documentElement.classList.toggle("slides", on)
      history.replaceState(null, "", address)
    }
    const resized = () => dispatchEvent(new Event("resize")) // site.js looks anew for what scrolls sideways
    function go(k) {
      at = Math.max(0, Math.min(all.length - 1, k))
      show(true, `#slides-${at + 1}`)
      all[at].forEach(([part, how]) => part.classList.add(...how.split(" ")))
      place.textContent = `${at + 1} / ${all.length}`
      scrollTo(0, 0)
      resized()
    }
    function enter(k) {
      all = slides()
      document.body.append(bar)
      go(k)
    }
    function leave() {
      show(false, location.pathname)
      bar.remove()
      all[at].at(-1)[0].scrollIntoView({ block: "center" })
      resized()
    }

    chapter.querySelector("nav.ways").append(button("Show as slides", "Show as slides", () => enter(0)))
    addEventListener("keydown", event => {
      const typing = event.target.closest("input, textarea, select, [contenteditable], .live") || event.key === " " && event.target.closest("button, summary")
      if (!bar.isConnected || typing || event.ctrlKey || event.metaKey || event.altKey) return
      if (event.key === "Escape") leave()
      else if (event.key in KEYS) { event.preventDefault(); go(at + KEYS[event.key]) }
    })
    const asked = /^#slides-(\d+)$/.exec(location.hash)
    if (asked) addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => enter(asked[1] - 1)))
  }
}
