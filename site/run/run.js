// ▶ on every code cell of a page. Python runs in a worker of the reader's browser; nothing is sent anywhere.
//
// A cell is a `div.cell` whose id is `cell-` and that of the notebook's cell; in it `.cell_input pre` has the code, and
// `.cell_output` what the book shows. The folder of this script is what prepare.py has filled.
(async () => {
  const here = new URL(".", document.currentScript.src)
  const boxes = [...document.querySelectorAll("div.cell")].filter(box => box.querySelector(".cell_input pre"))
  if (!boxes.length) return
  const status = make("span", { className: "run-status", role: "status" })
  const bar = make("div", { className: "run-bar" }, button("▶ all", "run every cell of this page", () => run(cells.length - 1)))
  const halt = button("Stop", "end Python and forget what it has computed", stop)
  bar.append(halt, status)
  boxes[0].before(bar) // where it covers nothing; once something runs, it goes with the reader
  halt.hidden = true
  const book = await fetch(new URL("book.json", here)).then(answer => answer.json(), () => null)
  if (!book) {
    say("The cells of this page run where it comes from a server: python -m http.server in its folder, then localhost:8000.")
    bar.querySelectorAll("button").forEach(b => b.remove())
    return
  }
  const cells = boxes.map(prepare)
  let worker, calls = 0, running = false
  const answers = new Map() // of the worker, by the number of the call
  idle()

  // ------------------------------------------------------------------------------------------------------- Python
  function ask(message, heard) {
    if (!worker) {
      worker = new Worker(new URL("worker.mjs", here), { type: "module" })
      worker.onmessage = ({ data }) => {
        if (data.broken) return broken(data.broken)
        if (data.doing) return say(cellSays(data.doing))
        const call = answers.get(data.id)
        if ("text" in data) return call.heard(data.text)
        answers.delete(data.id)
        call.resolve(data)
      }
      worker.onerror = error => broken(error.message ?? "its files are not there")
    }
    return new Promise(resolve => {
      answers.set(++calls, { resolve, heard })
      worker.postMessage({ id: calls, ...message })
    })
  }

  let current = null
  const cellSays = doing => (doing === "running" ? `Cell ${current.number} is running …` : `Python is not here yet: ${doing} …`)

  function end() {
    worker?.terminate()
    worker = undefined
    answers.forEach(call => call.resolve(null))
    answers.clear()
    cells.forEach(cell => { cell.ran = false; mark(cell, "") })
  }

  function stop() {
    end()
    say("Stopped. The next ▶ begins again, with the cells above.")
  }

  function broken(why) {
    end()
    say(`Python could not start: ${why}`)
  }

  // The cell, and before it every cell above that has not run since it was changed.
  async function run(k) {
    if (running) return say("Python is busy: wait for it, or press Stop.")
    running = true
    bar.dataset.busy = ""
    follow()
    const todo = cells.slice(0, k + 1).filter(cell => !cell.native && (!cell.ran || cell === cells[k]))
    todo.forEach(cell => mark(cell, "waits"))
    for (const cell of todo) {
      const answer = await runOne(cell)
      if (!answer || answer.error) break
    }
    todo.filter(cell => cell.box.dataset.run === "waits").forEach(cell => mark(cell, ""))
    running = false
    delete bar.dataset.busy
  }

  async function runOne(cell) {
    current = cell
    mark(cell, "runs")
    say(worker ? cellSays("running") : "Python is not here yet …")
    let pre = null
    const heard = text => {
      pre ??= newOutput(cell).appendChild(stream())
      pre.firstChild.textContent += text
    }
    const answer = await ask({ code: cell.pre.textContent, name: `cell ${cell.number}` }, heard)
    if (!answer) return null
    show(cell, answer)
    cell.ran = !answer.error
    mark(cell, answer.error ? "failed" : "ran")
    say(answer.error ? `Cell ${cell.number} stopped with an error; what stands below it did not run.`
                     : `Cell ${cell.number} ran in ${answer.seconds.toFixed(2)} s.`)
    return answer
  }

  // ------------------------------------------------------------------------------------------------------- the page
  function prepare(box, index) {
    const input = box.querySelector(".cell_input"), pre = input.querySelector("pre")
    const id = box.id.replace(/^cell-/, ""), cell = { box, pre, number: index + 1, ran: false }
    cell.native = book.native[id]
    cell.key = `run:${location.pathname}:${id}`
    cell.code = pre.innerHTML
    cell.text = pre.textContent
    cell.shown = box.querySelector(".cell_output")
    if (cell.native) {
      input.append(make("p", { className: "run-native", textContent: cell.native }))
      return cell
    }
    const play = button("▶", `run cell ${cell.number}, after those above it`, () => run(index))
    cell.reset = button("reset", `cell ${cell.number} as it stands in the book`, () => reset(cell))
    play.classList.add("run-play")
    cell.reset.classList.add("run-reset")
    input.classList.add("run-input")
    input.append(play, cell.reset)
    try { pre.contentEditable = "plaintext-only" } catch { pre.contentEditable = "true" }
    pre.spellcheck = false
    pre.tabIndex = 0
    new MutationObserver(() => { // whenever a page grows, by an output for example, its theme takes the tab key from code
      if (pre.tabIndex < 0) pre.tabIndex = 0
    }).observe(pre, { attributeFilter: ["tabindex"] })
    pre.setAttribute("role", "textbox")
    pre.setAttribute("aria-multiline", "true")
    pre.setAttribute("aria-label", `code of cell ${cell.number}; Shift and Enter run it`)
    const kept = localStorage.getItem(cell.key)
    if (kept !== null && kept !== cell.text) pre.textContent = kept
    changed(cell)
    pre.addEventListener("input", () => {
      cells.slice(index).forEach(later => { later.ran = false })
      changed(cell)
    })
    pre.addEventListener("keydown", event => {
      event.stopPropagation() // of the page's shortcuts, such as / for its search
      if (event.key !== "Enter" || !event.shiftKey) return
      event.preventDefault()
      run(index)
      cells.slice(index + 1).find(next => !next.native)?.pre.focus()
    })
    return cell
  }

  function changed(cell) {
    const edited = cell.pre.textContent !== cell.text
    if (edited) localStorage.setItem(cell.key, cell.pre.textContent)
    else localStorage.removeItem(cell.key)
    cell.reset.hidden = !edited
  }

  function reset(cell) {
    cell.pre.innerHTML = cell.code
    cells.slice(cell.number - 1).forEach(later => { later.ran = false })
    changed(cell)
    cell.box.querySelector(".cell_output")?.remove()
    if (cell.shown) cell.box.append(cell.shown)
    mark(cell, "")
  }

  function newOutput(cell) {
    cell.box.querySelector(".cell_output")?.remove()
    return cell.box.appendChild(make("div", { className: "cell_output docutils container" }))
  }

  const stream = kind => make("div", { className: `output highlight ${kind ?? "stream"}` }, make("pre"))

  function show(cell, { outputs, error }) {
    const place = newOutput(cell)
    for (const output of outputs) place.append(output.text === undefined ? rich(output) : text(output.text))
    if (error) place.append(text(error, "stderr run-error"))
    if (!place.children.length) place.remove()
  }

  function text(content, kind) {
    const box = stream(kind)
    box.firstChild.textContent = content
    return box
  }

  function rich({ data, metadata }) {
    if ("image/png" in data && !("text/html" in data)) {
      const { width, alt } = metadata["image/png"] ?? {}
      const picture = make("img", { src: `data:image/png;base64,${data["image/png"]}`, alt: alt ?? data["text/plain"] })
      if (width) picture.width = width
      return make("div", { className: "output image_png" }, picture)
    }
    const html = data["text/html"] ?? data["image/svg+xml"]
    if (html === undefined) return text(data["text/markdown"] ?? data["text/plain"])
    const box = make("div", { className: "output text_html" })
    box.innerHTML = html
    box.querySelectorAll("script:not([type])").forEach(script => // those that innerHTML brings do not run
      setTimeout(() => script.replaceWith(make("script", { textContent: script.textContent }))))
    return box
  }

  function follow() {
    if (!halt.hidden) return
    const focused = document.activeElement
    halt.hidden = false
    bar.classList.add("run-follows")
    boxes.at(-1).parentElement.closest("article, main, body").append(bar)
    focused?.focus({ preventScroll: true }) // "▶ all" loses it as it moves
  }

  function mark(cell, state) { cell.box.dataset.run = state }
  function say(sentence) { status.textContent = sentence }
  function idle() {
    const all = Object.values(book.bytes).reduce((a, b) => a + b, 0)
    say(`▶ runs a cell in your browser; the first time it fetches ${Math.round(all / 1e6)} MB.`)
  }
  function button(label, title, onclick) {
    const named = /\w/.test(label) ? {} : { ariaLabel: title } // a name has to contain the words that one sees
    return make("button", { type: "button", textContent: label, title, ...named, onclick })
  }
  function make(tag, properties = {}, ...children) {
    const element = Object.assign(document.createElement(tag), properties)
    element.append(...children)
    return element
  }
})()
