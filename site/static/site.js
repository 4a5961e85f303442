// The theme calls its search button other than what stands on it, which a voice would have to know.
document.querySelectorAll(".search-button-field").forEach(button => button.removeAttribute("aria-label"))

// On a narrow page Escape closes a list; the theme took the focus off the button that opened it, and can't give it back.
for (const list of ["primary", "secondary"])
  document.querySelector(`#pst-${list}-sidebar-modal`)?.addEventListener("close", () => setTimeout(() => {
    if (document.activeElement === document.body) document.querySelector(`button.${list}-toggle`)?.focus()
  }))

// Each cell has the id of the notebook's cell, for what runs it.
document.querySelectorAll("div.cell[id^='cell-']").forEach(cell => { cell.dataset.cell = cell.id.slice(5) })

// What the search finds in the glossary is called after its term.
const results = document.querySelector("#search-results")
if (results) new MutationObserver(() => results.querySelectorAll("a[href*='glossary.html#term-']").forEach(link => {
  if (link.textContent === "Glossary") link.textContent += " > " + link.hash.slice(6).replaceAll("-", " ")
})).observe(results, { childList: true, subtree: true })

// The number of an equation or exercise, such as (2.1), is no word of a text: it leads to its chapter.
const number = /^\s*\(?(\d{1,2})\.(\d{1,2})\)?\s*$/.exec(new URLSearchParams(location.search).get("q") ?? "")
const chapter = results && number && document.querySelector(`.bd-sidebar a[href^='${number[1].padStart(2, "0")}_']`)
if (chapter) {
  const link = (name, place) => Object.assign(document.createElement("a"), { href: `${chapter.getAttribute("href")}#${place}`, textContent: name })
  const [, k, i] = number.map(Number), line = document.createElement("p")
  line.append("Look at ", link(`equation (${k}.${i})`, `equation-${k}-${i}`), " or ", link(`exercise ${k}.${i}`, `ex-${number[1].padStart(2, "0")}-${i}-task`),
    `, in “${chapter.textContent.trim()}”.`)
  results.before(line)
}

// What scrolls sideways can be reached by keyboard, and says what it is.
const name = element => element.matches("table, table *, .pst-scrollable-table-container") ? "table" : element.matches("mjx-container") ? "equation" : element.matches("figure") ? "figure" : "code"
const width = element => element?.getBoundingClientRect().width
const reach = () => {
  document.querySelectorAll("article span.math").forEach(span => { // wider than a phone; to all others it would give a bar, too
    span.classList.toggle("wide", width(span.querySelector("mjx-math")) > width(span) + 1)
  })
  document.querySelectorAll("article .pst-scrollable-table-container").forEach(box => { // what scrolls anyway has room for its words
    if (box.scrollWidth > box.clientWidth + 1) box.firstElementChild.style.minWidth = "34rem"
  })
  document.querySelectorAll("article :is(pre, mjx-container[display], .wide mjx-container, .output, figure, .pst-scrollable-table-container)").forEach(element => {
    if (element.scrollWidth > element.clientWidth + 1) Object.assign(element, { tabIndex: 0 }).ariaLabel ||= name(element)
  })
}
const later = () => [0, 600].forEach(wait => setTimeout(reach, wait)) // the theme decides on code after a while
addEventListener("load", () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(later))
addEventListener("resize", later)
