// Python with the book in it: `run = await start(here, {read, load, report})`, then `await run(code, name, tell)`, cell by cell.
//
//   here      address of the folder that prepare.py filled, ending in /
//   read      address → its bytes, refused unless they have the SHA-256 of book.json
//   load      folder of Pyodide → its loadPyodide
//   report    is told what is being done
//
// worker.mjs calls this in a browser, tests/site/chapter.mjs in Node.

const DRAWS = /\b(figures|live|matplotlib)\b/ // a cell that says so may need Matplotlib, which the first cells don't wait for

export async function start(here, { read, load, report }) {
  const book = JSON.parse(new TextDecoder().decode(await read(here + "book.json")))
  const from = book.pyodide === "./" ? here : book.pyodide
  const loadPyodide = await load(from)
  const places = { indexURL: from, packageBaseUrl: from, lockFileURL: here + "pyodide-lock.json" }
  const python = await loadPyodide(places)
  const install = names => python.loadPackage(names, { messageCallback: () => {}, checkIntegrity: true })
  await install(book.first)
  python.unpackArchive(await read(here + "book.zip"), "zip", { extractDir: "/book" })
  python.FS.writeFile("/book/cell.py", await read(here + "cell.py"))
  python.runPython("import sys; sys.path.insert(0, '/book'); import cell; cell.begin()")
  const runCell = python.pyimport("cell").run_cell
  let drawing

  return async function run(code, name, tell) {
    if (DRAWS.test(code)) await (drawing ??= install(book.drawing))
    report("running")
    return JSON.parse(runCell(code, name, tell))
  }
}
