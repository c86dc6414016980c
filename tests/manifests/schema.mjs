// Checks documents against a JSON Schema.
//
//   node schema.mjs NODE_MODULES < {"schema": SCHEMA, "documents": {NAME: DOCUMENT}}
//
// Prints the names of the documents that the schema rejects and the first mistake of each, as a JSON map.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const [modules] = process.argv.slice(2);
const Ajv = createRequire(join(modules, "package.json"))("ajv").default;
const { schema, documents } = JSON.parse(readFileSync(0, "utf8"));
const validate = new Ajv({ strictTypes: false, keywords: ["deprecationMessage"] }).compile(schema);
const rejected = {};
for (const [name, document] of Object.entries(documents)) {
  if (!validate(document)) rejected[name] = `${validate.errors[0].instancePath} ${validate.errors[0].message}`;
}
console.log(JSON.stringify(rejected));
