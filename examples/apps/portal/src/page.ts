// The page: asks the portal's backend again and again, and shows the answer.
import { render, type Usage } from "./bars.js";

const REFRESH_MS = 5_000;

const limits = document.getElementById("limits")!;
const status = document.getElementById("status")!;

async function refresh(): Promise<void> {
  const response = await fetch("/limits.json").catch(() => undefined);
  if (response?.ok) {
    limits.innerHTML = render((await response.json()) as Usage);
    status.textContent = `as of ${new Date().toLocaleTimeString()}`;
  }
  // Without an answer the bars stay, with the time of the last one.
  status.classList.toggle("old", !response?.ok);
  const seconds = Number(response?.headers.get("retry-after") ?? 0);
  setTimeout(refresh, Math.max(REFRESH_MS, 1_000 * seconds));
}

void refresh();
