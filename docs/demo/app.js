import { Upload, Refused, unfinished } from "./tus.js";

const ENDPOINT = "/files";
const $ = (id) => document.getElementById(id);

// ------------------------------------------------------------------- helpers

function note(element, text, kind = "") {
  element.textContent = text;
  element.className = kind ? `note ${kind}` : "note";
  element.hidden = text === "";
}

function facts(list, pairs) {
  list.replaceChildren(...pairs.map(([name, value]) => {
    const row = document.createElement("div");
    const term = document.createElement("dt");
    const text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    row.append(term, text);
    return row;
  }));
}

function claimsOf(encoded) {
  if (!encoded) return "";
  try {
    const bytes = Uint8Array.from(atob(encoded.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
    return new TextDecoder().decode(bytes);
  } catch {
    return "";
  }
}

async function problemText(answer) {
  if (!(answer.headers.get("Content-Type") || "").includes("json")) return `The answer was ${answer.status}.`;
  const body = await answer.json();
  return body.detail || body.title || body.error || `The answer was ${answer.status}.`;
}

// ------------------------------------------------------------------ sessions

async function showIdentity() {
  let identity;
  try {
    const answer = await fetch("/api/whoami", { cache: "no-store" });
    if (!answer.ok) throw new Error(await problemText(answer));
    identity = await answer.json();
  } catch (error) {
    note($("session-note"), `The identity cannot be read: ${error.message}`, "bad");
    return;
  }
  const user = decodeURIComponent(identity["Gatehouse-User"]);
  const rows = Object.entries(identity).map(([name, value]) => [name, value || "(not sent)"]);
  const claims = claimsOf(identity["Gatehouse-Claims"]);
  if (claims) rows.push(["The claims, decoded", claims]);
  facts($("identity"), rows);
  $("who").textContent = user ? `Signed in as ${user}` : "Not signed in";
  $("who").classList.toggle("in", user !== "");
  $("sign-out").disabled = $("sign-out-everywhere").disabled = user === "";
}

async function session(path, done) {
  try {
    const answer = await fetch(path, { method: "POST" });
    if (answer.ok) note($("session-note"), done, "good");
    else note($("session-note"), await problemText(answer), "bad");
  } catch {
    note($("session-note"), "The gateway cannot be reached.", "bad");
  }
  await showIdentity();
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const name = $("name").value;
  session(`/sign-in?name=${encodeURIComponent(name)}`, `Welcome, ${name}.`);
});
$("sign-out").addEventListener("click", () => session("/sign-out", "Signed out."));
$("sign-out-everywhere").addEventListener("click", () => session("/sign-out-everywhere", "Every session of yours has ended."));

// -------------------------------------------------------------------- limits

const LIMIT_HEADERS = ["RateLimit-Policy", "RateLimit", "Retry-After"];

async function askLimited() {
  let answer;
  try {
    answer = await fetch("/api/limited", { cache: "no-store" });
  } catch {
    note($("limit-note"), "The gateway cannot be reached.", "bad");
    return;
  }
  const chip = document.createElement("li");
  chip.textContent = answer.status;
  chip.classList.toggle("refused", !answer.ok);
  $("limit-list").prepend(chip);
  while ($("limit-list").children.length > 24) $("limit-list").lastChild.remove();

  facts($("limit-headers"), LIMIT_HEADERS.filter((name) => answer.headers.has(name)).map((name) => [name, answer.headers.get(name)]));
  const body = await answer.json();
  $("limit-problem").hidden = answer.ok;
  $("limit-problem").textContent = answer.ok ? "" : JSON.stringify(body, null, 2);
  if (answer.ok) note($("limit-note"), body.message, "good");
  else note($("limit-note"), `${body.title}: wait ${answer.headers.get("Retry-After")} s`, "bad");
}

$("limit-one").addEventListener("click", askLimited);
$("limit-many").addEventListener("click", async () => {
  $("limit-many").disabled = true;
  for (let i = 0; i < 12; i++) await askLimited();
  $("limit-many").disabled = false;
});

// ------------------------------------------------------------------- uploads

let upload = null; // the one of the chosen file
let clock = null; // for the speed of the present run

const size = (bytes) => {
  for (const unit of ["B", "KiB", "MiB"]) {
    if (bytes < 1024) return `${unit === "B" ? bytes : bytes.toFixed(1)} ${unit}`;
    bytes /= 1024;
  }
  return `${bytes.toFixed(2)} GiB`;
};

function showProgress(sent, total) {
  const share = total === 0 ? 1 : sent / total;
  $("progress").value = share;
  $("percent").textContent = `${Math.floor(share * 100)} %`;
  const now = performance.now();
  clock ??= { from: sent, at: now };
  const speed = (sent - clock.from) / ((now - clock.at) / 1000);
  $("upload-figures").textContent = `${size(sent)} of ${size(total)}` + (speed > 0 && Number.isFinite(speed) ? `, ${size(speed)}/s` : "");
}

function showButtons() {
  const running = upload?.running ?? false;
  $("upload-start").disabled = !upload || running;
  $("upload-pause").disabled = !running;
  $("file").disabled = running;
  const names = unfinished(ENDPOINT);
  $("upload-cancel").disabled = !upload || (!running && $("upload-start").textContent === "Upload");
  $("unfinished").hidden = names.length === 0 || running || $("upload-start").textContent === "Continue";
  $("unfinished").textContent = `Unfinished: ${names.join(", ")}. Choose the same file again to continue.`;
}

function showAnswer(answer) {
  $("upload-answer").hidden = false;
  facts($("upload-headers"), [["Status", String(answer.status)], ...answer.headers]);
}

function choose(file) {
  $("upload-answer").hidden = true;
  $("upload-start").textContent = "Upload";
  note($("upload-state"), "");
  clock = null;
  upload = !file ? null : new Upload(file, ENDPOINT, {
    progress: (sent) => {
      showProgress(sent, file.size);
      if (sent === file.size) note($("upload-state"), "Everything is sent; waiting for the application.");
    },
    resumed: (offset) => {
      clock = null;
      note($("upload-state"), `Continuing at ${size(offset)}.`);
    },
    waiting: (pause, reason) => note($("upload-state"), `Trying again in ${(pause / 1000).toFixed(1)} s: ${reason}.`, "bad"),
  });
  if (file) showProgress(0, file.size);
  showButtons();
}

async function start() {
  const current = upload;
  clock = null;
  $("upload-answer").hidden = true;
  note($("upload-state"), "Uploading.");
  const run = current.run();
  $("upload-start").textContent = "Continue";
  showButtons();
  try {
    const answer = await run;
    if (upload !== current) return;
    if (answer === null) {
      if ($("upload-start").textContent === "Continue") note($("upload-state"), "Paused.");
    } else {
      $("upload-start").textContent = "Upload";
      note($("upload-state"), "Done: the application has the file.", "good");
      showAnswer(answer);
    }
  } catch (error) {
    note($("upload-state"), error.message, "bad");
    if (error instanceof Refused) showAnswer(error.answer);
  } finally {
    showButtons();
  }
}

$("file").addEventListener("change", () => choose($("file").files[0]));
$("upload-start").addEventListener("click", start);
$("upload-pause").addEventListener("click", () => upload.pause());
$("upload-cancel").addEventListener("click", async () => {
  $("upload-start").textContent = "Upload";
  try {
    await upload.cancel();
    note($("upload-state"), "Cancelled; the gateway has forgotten the upload.");
  } catch (error) {
    note($("upload-state"), error.message, "bad");
  }
  $("progress").value = 0;
  $("percent").textContent = "0 %";
  $("upload-figures").textContent = "\u00a0";
  showButtons();
});

choose($("file").files[0]);
showIdentity();
