// What every figure that moves needs: elements, sliders, a sentence. It builds the piece into the figure, instead of the still.
(figure, piece) => {
  const data = JSON.parse(figure.querySelector("script[type='application/json']").textContent)
  const fill = (element, properties, children) => {
    for (const [name, value] of Object.entries(properties)) {
      if (name.startsWith("on")) element[name] = value
      else if (value !== undefined) element.setAttribute(name, value)
    }
    element.append(...children)
    return element
  }
  const make = (tag, properties = {}, ...children) => fill(document.createElement(tag), properties, children)
  const svg = (tag, properties = {}, ...children) =>
    fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children)
  const minus = text => String(text).replaceAll("-", "−")
  const controls = make("div", { class: "live-controls" }), stage = make("div", { class: "live-stage" })
  const sentence = make("p", { class: "live-says", "aria-live": "polite" })
  const tools = {
    figure, data, make, svg, minus, stage,
    slider(name, [min, max, step, value], text, changed) {
      const input = make("input", { type: "range", min, max, step, value }), shown = make("output")
      const self = {
        get value() { return +input.value },
        set value(v) { input.value = v; told() },
      }
      const told = () => { shown.textContent = minus(text(+input.value)); input.setAttribute("aria-valuetext", shown.textContent) }
      input.oninput = () => { told(); changed() }
      told()
      controls.append(make("label", {}, name, input, shown))
      return self
    },
    button(name, pressed) {
      const self = make("button", { type: "button", onclick: pressed }, name)
      controls.append(self)
      return self
    },
    box(name, checked, changed) {
      const input = make("input", { type: "checkbox", onchange: changed })
      input.checked = checked
      controls.append(make("label", {}, input, name))
      return input
    },
    dragged(art, go) { // go(event) as a pointer comes down on it, and moves while it is down
      art.onpointerdown = event => { art.setPointerCapture(event.pointerId); go(event) }
      art.onpointermove = event => art.hasPointerCapture(event.pointerId) && go(event)
    },
    typed(art, ways, go) { // go(way, key) for the keys that have a way
      art.onkeydown = event => {
        const way = ways[event.key]
        if (way === undefined) return
        event.preventDefault()
        event.stopPropagation()
        go(way, event.key)
      }
    },
    say(text, numbers) {
      sentence.textContent = minus(text)
      for (const [name, value] of Object.entries(numbers)) figure.dataset[name] = value
    },
  }
  piece.build(tools, (...setting) => piece.compute(data, ...setting))
  figure.append(controls, stage, sentence)
  const still = figure.closest(".jp-OutputArea, .cell_output")?.querySelector("img")
  if (still) still.style.display = "none"
}
