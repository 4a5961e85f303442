// What a chapter shows as slides, one after the other: run in the page, and never sent by the site. Null for a page without slides.
(() => {
  const root = document.documentElement, press = key => document.body.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }))
  const open = [...document.querySelectorAll(".ways button")].find(button => button.textContent === "Show as slides")
  if (!open) return null
  const inChapter = element => !element.closest("section#exercises, section#new-symbols, details")
  const all = selector => [...document.querySelectorAll(`article :is(${selector})`)].filter(inChapter)
  const seen = element => element.getClientRects().length > 0
  const place = () => document.querySelector(".slides-bar [role=status]").textContent
  const kinds = { equation: all(".math:is(div)"), output: all(".cell_output"), figure: all(".cell_output :is(img, .live)") }
  const missed = Object.fromEntries(Object.entries(kinds).map(([kind, found]) => [kind, new Set(found.filter(seen))])), wrong = []
  let before
  open.click()
  for (let guard = 0; guard < 1000 && place() !== before; guard++) {
    before = place()
    const on = [...document.querySelectorAll("article .on")]
    if (on.reduce((sum, part) => sum + part.offsetHeight, 0) < 20) wrong.push(`slide ${before} is empty`)
    if (root.scrollWidth > root.clientWidth) wrong.push(`slide ${before} is ${root.scrollWidth - root.clientWidth} px too wide`)
    if (on.some(part => part.matches(".only-input") && seen(part.querySelector(".cell_output")))) wrong.push(`slide ${before} tells before one can guess`)
    Object.values(missed).forEach(left => left.forEach(element => { if (seen(element)) left.delete(element) }))
    press("ArrowRight")
  }
  press("ArrowLeft")
  if (place() === before) wrong.push("no way back")
  press("Escape")
  if (root.matches(".slides") || document.querySelector(".slides-bar, article .on") || location.hash) wrong.push("no way out")
  Object.entries(missed).forEach(([kind, left]) => left.forEach(element => wrong.push(`${kind} on no slide: ${element.textContent.slice(0, 80)}`)))
  return { slides: Number(before.split("/")[1]), wrong }
})()
