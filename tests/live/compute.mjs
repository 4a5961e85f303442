// `node compute.mjs FILE ASKED`: what the JavaScript of a figure computes for each of the settings of ASKED, {data, settings}.
import { readFileSync } from "node:fs"

const [file, asked] = process.argv.slice(2)
const piece = (0, eval)(`(${readFileSync(file, "utf8")})`)
const { data, settings } = JSON.parse(readFileSync(asked, "utf8"))
console.log(JSON.stringify(settings.map(setting => piece.compute(data, ...setting))))
