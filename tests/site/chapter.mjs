// Run cells in the runtime of the site, under Node: `node chapter.mjs FOLDER CELLS ANSWERS`.
//
// FOLDER is what site/run/prepare.py has filled, with its own copy of Pyodide. CELLS is a JSON list of {id, code}; a line of
// ANSWERS is what a cell showed.
import { appendFileSync, readFileSync } from "node:fs"
import { resolve } from "node:path"
import { pathToFileURL } from "node:url"

const [folder, cells, answers] = process.argv.slice(2)
const here = resolve(folder) + "/"
const { start } = await import(pathToFileURL(here + "python.mjs"))
const read = async path => new Uint8Array(readFileSync(path))
const load = async from => (await import(pathToFileURL(from + "pyodide.mjs"))).loadPyodide
const run = await start(here, { read, load, report: () => {} })
for (const { id, code } of JSON.parse(readFileSync(cells, "utf8"))) {
  const answer = await run(code, `cell ${id}`)
  appendFileSync(answers, JSON.stringify({ id, ...answer }) + "\n")
}
process.exit(0)
