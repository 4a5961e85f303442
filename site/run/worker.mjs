// The worker behind run.js: it fetches Python, says what it fetches, and runs cells one after another.
import { start } from "./python.mjs"

const here = new URL(".", import.meta.url).href
const report = doing => postMessage({ doing })
const million = bytes => (bytes / 1e6).toFixed(1)
const download = globalThis.fetch.bind(globalThis)
let book, got = 0

// Whoever fetches a file of Python here, Pyodide too, gets the bytes that were pinned, or an error.
globalThis.fetch = async (address, options = {}) => {
  const name = String(address.url ?? address).split("/").pop()
  if (!book || !(name in book.sha256)) return download(address, options)
  const bytes = Uint8Array.from(book.sha256[name].match(/../g), two => parseInt(two, 16))
  report(`fetching ${name.split("-")[0]}, ${million(book.bytes[name])} MB (${million(got)} MB so far)`)
  const answer = await download(address, { ...options, integrity: "sha256-" + btoa(String.fromCharCode(...bytes)) })
  got += book.bytes[name]
  report(`starting Python (${million(got)} MB fetched)`)
  return answer
}

async function read(address) {
  const answer = await fetch(address)
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`)
  return new Uint8Array(await answer.arrayBuffer())
}

// Both modules are run as they were fetched and checked; an import by address would fetch them again, unchecked.
async function load(from) {
  const module = text => URL.createObjectURL(new Blob([text], { type: "text/javascript" }))
  const [text, inner] = await Promise.all(["pyodide.mjs", "pyodide.asm.mjs"].map(name => read(from + name)))
  const outer = new TextDecoder().decode(text).replace(/`\$\{\w+\.indexURL\}pyodide\.asm\.mjs`/, JSON.stringify(module(inner)))
  return (await import(module(outer))).loadPyodide
}

async function begin() {
  book = await (await download(here + "book.json")).json()
  return start(here, { read, load, report })
}

let last = begin()
last.catch(broken)
function broken(error) {
  postMessage({ broken: String(error.message ?? error) })
}
onmessage = ({ data: { id, code, name } }) => {
  last = last.then(async run => {
    const { outputs, error, seconds } = await run(code, name, text => postMessage({ id, text }))
    postMessage({ id, outputs, error, seconds })
    return run
  })
  last.catch(broken)
}
