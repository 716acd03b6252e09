// Uploads a file with tus-js-client as a user of it would and prints what came
// of it as JSON. Arguments: endpoint, file, bytes a request.
import * as tus from "tus-js-client";
import { createReadStream } from "node:fs";
import { basename } from "node:path";

const [endpoint, file, chunkSize] = process.argv.slice(2);
const requests = [];
const report = { requests };

const upload = new tus.Upload(createReadStream(file), {
  endpoint,
  chunkSize: Number(chunkSize),
  retryDelays: Array.from({ length: 40 }, (_, i) => Math.min(100 * i, 2000)),
  metadata: { filename: basename(file), filetype: "application/octet-stream" },
  onAfterResponse(req, res) {
    requests.push(`${req.getMethod()} ${req.getHeader("Upload-Offset") ?? ""} ${res.getStatus()}`);
    report.stored = res.getHeader("X-Stored") ?? report.stored;
    report.status = res.getStatus();
  },
  onError(error) {
    report.error = String(error);
    finish(1);
  },
  onSuccess() {
    report.url = upload.url;
    finish(0);
  },
});

function finish(code) {
  console.log(JSON.stringify(report));
  process.exitCode = code;
}

upload.start();
