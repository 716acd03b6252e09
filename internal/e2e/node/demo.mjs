// Visits the demo page as a person would and fails at the first thing that is
// not as it should be. Arguments: the page's URL, a folder for screenshots, the
// file to upload and another one.
import { chromium } from "playwright-core";
import { basename, join } from "node:path";
import assert from "node:assert/strict";

const [url, shots, file, other] = process.argv.slice(2);
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM,
  args: ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--no-first-run"],
});

const complaints = []; // errors of scripts, violations of the page's own policy
function watch(page) {
  page.on("pageerror", (error) => complaints.push(`script error: ${error.message}`));
  page.on("console", (message) => {
    // Chromium logs refused requests (429 is expected here) as errors too.
    if (message.type() === "error" && !message.text().startsWith("Failed to load resource")) {
      complaints.push(`console: ${message.text()}`);
    }
  });
}

const text = (page, id) => page.locator(`#${id}`).innerText();
const until = (page, id, pattern) => page.waitForFunction(
  ([id, source]) => new RegExp(source).test(document.getElementById(id).innerText), [id, pattern.source]);
const step = (what) => console.log(what);

try {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 } });
  context.setDefaultTimeout(120000); // a busy machine is no failure
  const page = await context.newPage();
  watch(page);

  step("opening the page");
  const opened = await page.goto(url);
  assert.equal(opened.status(), 200);
  assert.match(opened.headers()["content-security-policy"], /default-src 'none'/);
  await until(page, "identity", /Gatehouse-User/);
  assert.equal(await text(page, "who"), "Not signed in");
  await page.screenshot({ path: join(shots, "1-opened.png"), fullPage: true });

  step("signing in");
  await page.getByLabel("Your name").fill("ada");
  await page.getByRole("button", { name: "Sign in" }).click();
  await until(page, "who", /Signed in as ada/);
  const identity = await text(page, "identity");
  for (const part of ["ada", "active", '"role":"visitor"']) assert.ok(identity.includes(part), `the identity lacks ${part}:\n${identity}`);
  const [cookie] = (await context.cookies()).filter((c) => c.name === "gatehouse");
  assert.ok(cookie, "there is no session cookie");
  assert.ok(cookie.httpOnly, "the session cookie is readable by scripts");
  await page.reload();
  await until(page, "who", /Signed in as ada/);

  step("meeting the limit");
  // Windows are aligned to the clock: two rounds of twelve meet the limit of
  // ten wherever they begin, unless a window ends within the round.
  for (let round = 0; round < 3 && (await page.locator("#limit-list .refused").count()) === 0; round++) {
    await page.getByRole("button", { name: "Send twelve" }).click();
    await page.waitForFunction(() => !document.getElementById("limit-many").disabled);
  }
  const statuses = await page.locator("#limit-list li").allInnerTexts();
  assert.ok(statuses.includes("200") && statuses.includes("429"), `statuses were ${statuses}`);
  assert.match(await text(page, "limit-headers"), /RateLimit-Policy\s+"demo";q=10;w=10/);
  assert.match(await text(page, "limit-headers"), /Retry-After\s+\d+/);
  const problem = JSON.parse(await text(page, "limit-problem"));
  assert.equal(problem.code, "rate-limited");
  assert.equal(problem.status, 429);
  await page.locator("#h-limit").locator("..").screenshot({ path: join(shots, "2-limited.png") });

  step("uploading, with a pause, a reload and a resume");
  const patches = [];
  page.on("request", (request) => {
    if (request.method() === "PATCH") patches.push(Number(request.headers()["upload-offset"]));
  });
  await page.route("**/files/*", async (route) => { // slow enough for a finger on the pause button
    if (route.request().method() === "PATCH") await new Promise((resolve) => setTimeout(resolve, 60));
    await route.continue();
  });
  await page.getByLabel("File, at most 2 GiB").setInputFiles(file);
  await page.getByRole("button", { name: "Upload", exact: true }).click();
  await page.waitForFunction(() => document.getElementById("progress").value > 0.2);
  await page.getByRole("button", { name: "Pause" }).click();
  await until(page, "upload-state", /Paused/);
  const share = await page.locator("#progress").evaluate((bar) => bar.value);
  assert.ok(share < 1, "the upload was over before the pause");
  await page.screenshot({ path: join(shots, "3-paused.png"), fullPage: true });

  await page.reload();
  await until(page, "unfinished", new RegExp(basename(file)));
  const before = patches.length;
  await page.getByLabel("File, at most 2 GiB").setInputFiles(file);
  await page.getByRole("button", { name: "Upload", exact: true }).click();
  await page.waitForFunction(() => /Done|refused|answered/.test(document.getElementById("upload-state").innerText));
  assert.match(await text(page, "upload-state"), /Done: the application has the file/);
  assert.ok(patches[before] > 0, `the upload began again at ${patches[before]}`);
  const answer = await text(page, "upload-headers");
  assert.match(answer, /x-stored\s+[A-Za-z0-9_-]{32}, 52428800 bytes for ada/i);
  await page.screenshot({ path: join(shots, "4-uploaded.png"), fullPage: true });

  step("cancelling another upload");
  await page.getByLabel("File, at most 2 GiB").setInputFiles(other);
  await page.getByRole("button", { name: "Upload", exact: true }).click();
  const first = await page.waitForResponse((response) => response.request().method() === "PATCH");
  await page.getByRole("button", { name: "Cancel" }).click();
  await until(page, "upload-state", /Cancelled/);
  const after = await page.evaluate(async (at) => (await fetch(at, { method: "HEAD", headers: { "Tus-Resumable": "1.0.0" } })).status, first.url());
  assert.ok(after === 404 || after === 410, `the cancelled upload answers ${after}`);

  step("on a telephone");
  await page.setViewportSize({ width: 390, height: 844 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  assert.equal(wide, 0, "the page scrolls sideways on a telephone");
  await page.screenshot({ path: join(shots, "5-telephone.png"), fullPage: true });

  step("signing out");
  await page.getByRole("button", { name: "Sign out", exact: true }).click();
  await until(page, "who", /Not signed in/);
  assert.equal((await context.cookies()).filter((c) => c.name === "gatehouse").length, 0, "the cookie is still there");

  step("signing out everywhere, with a second browser");
  const second = await browser.newContext();
  for (const ctx of [context, second]) {
    const answer = await ctx.request.post(new URL("/sign-in?name=bob", url).href, { headers: { "Sec-Fetch-Site": "same-origin" } });
    assert.equal(answer.status(), 200);
  }
  await page.reload();
  await until(page, "who", /Signed in as bob/);
  await page.getByRole("button", { name: "Sign out everywhere" }).click();
  await until(page, "who", /Not signed in/);
  const left = await (await second.request.get(new URL("/api/whoami", url).href)).json();
  assert.equal(left["Gatehouse-User"], "", "the second browser is still signed in");

  assert.deepEqual(complaints, []);
  step("all is well");
} finally {
  await browser.close();
}
