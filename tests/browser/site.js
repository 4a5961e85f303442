// What a page of the site shows, as it stands: run in the page, and never sent by the site.
(() => {
  const root = document.documentElement
  const shown = element => element.checkVisibility({ visibilityProperty: true }) && element.getClientRects().length
  const says = element => element.outerHTML.slice(0, 160)
  const all = selector => [...document.querySelectorAll(selector)]
  const scrolls = element => shown(element) && /auto|scroll/.test(getComputedStyle(element).overflowX) && element.scrollWidth > element.clientWidth + 1
  const inside = (part, whole) => part.left >= whole.left - 1 && part.right <= whole.right + 1
  const cut = (math, of) => math && shown(math) && !scrolls(math.parentElement) && !inside(math.getBoundingClientRect(), of.getBoundingClientRect())
  const holds = element => element.tabIndex >= 0 || element.querySelector("a[href], button, input, [tabindex='0']")
  return {
    equations: all("mjx-container").length,
    errors: [...all("mjx-merror, [data-mjx-error]").map(e => e.closest("mjx-container").outerHTML.slice(0, 300)),
             ...all(".math").filter(e => !e.querySelector("mjx-container")).map(says)],
    cut: all(".math").filter(e => cut(e.querySelector("mjx-container > mjx-math"), e)).map(says),
    wider: root.scrollWidth - root.clientWidth,
    nameless: all("img").filter(img => !img.alt.trim()).map(says),
    undrawn: all("img").filter(img => img.complete && !img.naturalWidth).map(says),
    links: all("a[href]").map(a => a.href),
    ids: all("[id]").map(e => e.id),
    unreachable: [...all("a[href], button, input, summary, select").filter(e => shown(e) && e.tabIndex < 0).map(says),
                  ...all("article *").filter(e => scrolls(e) && !holds(e)).map(says)],
  }
})()
