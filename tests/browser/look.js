// What a reader sees of the notebook `opened`, cell by cell. A number is by how many pixels something runs over its column.
(() => {
  const text = element => element.textContent.trim().replace(/\s+/g, " ").slice(0, 60);
  const over = (element, column) => {
    const { paddingRight } = getComputedStyle(column);
    const edge = column.getBoundingClientRect().right - parseFloat(paddingRight);
    return Math.round(element.getBoundingClientRect().right - edge);
  };
  const unset = cell => {  // formulas of which one still reads the source
    const words = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const found = [];
    while (words.nextNode()) {
      const outside = !words.currentNode.parentElement.closest("pre, code, mjx-container");
      if (outside && /\$|\\begin\{/.test(words.currentNode.data)) found.push(words.currentNode.data.slice(0, 60));
    }
    return found;
  };
  return opened.content.widgets.map(({ node, model }) => {
    const all = selector => [...node.querySelectorAll(selector)];
    const prose = all(".jp-RenderedMarkdown");
    const there = model.type === "markdown" ? prose.some(part => part.childElementCount)
      : all(".jp-OutputArea-output").length >= (model.outputs?.length ?? 0);
    const pictures = all(".jp-OutputArea-output img, .jp-OutputArea-output svg, .jp-RenderedMarkdown img");
    const drawn = pictures.filter(picture => picture.getBoundingClientRect().height > 0 && picture.naturalWidth !== 0);
    return {
      settled: there && pictures.every(picture => picture.complete ?? true) && !prose.some(part => unset(part).length),
      figures: drawn.map(picture => over(picture, picture.closest(".jp-OutputArea-output, .jp-RenderedMarkdown"))),
      formulas: all(".jp-RenderedMarkdown mjx-container").map(formula => [
        text(formula), over(formula.querySelector("mjx-math"), formula.closest(".jp-RenderedMarkdown"))]),
      errors: [...all("mjx-merror, mjx-mtext[style*='red']").map(error => text(error.closest("mjx-container"))),
        ...prose.flatMap(unset)],
      links: all(".jp-RenderedMarkdown a[href]").map(link => link.getAttribute("href")),
      anchors: all("[id], [data-jupyter-id]").map(place => place.id || place.dataset.jupyterId),
    };
  });
})()
