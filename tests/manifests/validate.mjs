// Checks objects of custom kinds against the schemas of their packages, unknown fields included.
//
//   node validate.mjs NODE_MODULES < OBJECTS
//
// OBJECTS is a JSON list. Prints a line for each mistake, and exits with 1 if there is one.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [modules] = process.argv.slice(2);
const packages = { "monitoring.coreos.com": "prometheus-operator", "networking.istio.io": "istio" };

// The schemas take fields that they do not know. What they know, they look at: a field that a validation never
// looked at is unknown.
function watched(value, path, unseen) {
  if (value === null || typeof value !== "object") return value;
  const children = new Map();
  if (!Array.isArray(value)) {
    for (const key of Object.keys(value)) unseen.add(`${path}/${key}`);
  }
  return new Proxy(value, {
    get(target, key) {
      if (typeof key === "symbol" || !Object.hasOwn(target, key)) return target[key];
      unseen.delete(`${path}/${key}`);
      if (!children.has(key)) children.set(key, watched(target[key], `${path}/${key}`, unseen));
      return children.get(key);
    },
  });
}

async function mistakes(object) {
  const [group, version] = (object.apiVersion ?? "").split("/");
  const name = packages[group];
  if (!name) return [`no schema for ${object.apiVersion} ${object.kind}`];
  const folder = join(modules, "@kubernetes-models", name);
  const url = pathToFileURL(join(folder, group, version ?? "", "index.js"));
  const model = (await import(url))[object.kind];
  if (!model?.kind) return [`no schema for ${object.apiVersion} ${object.kind}`];
  const unseen = new Set();
  const instance = Object.create(model.prototype);
  try {
    model.prototype.validate.call(watched(Object.assign(instance, object), "", unseen));
  } catch (error) {
    return [error.message];
  }
  return [...unseen].map((path) => `unknown field ${path}`);
}

let failed = false;
for (const object of JSON.parse(readFileSync(0, "utf8"))) {
  for (const mistake of await mistakes(object)) {
    failed = true;
    console.log(`${object.kind} ${object.metadata?.name}: ${mistake}`);
  }
}
process.exitCode = failed ? 1 : 0;
