// What the official parser says of a document: {"read": bool, "diagnostics": [[severity, code, message, path], …]}; 0 is an error.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser().parse(readFileSync(process.argv[2], "utf8"));
const told = diagnostics.map(({ severity, code, message, path }) => [severity, code, message, path.join("/")]);
console.log(JSON.stringify({ read: document !== undefined, diagnostics: told }));
