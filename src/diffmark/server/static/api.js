// The service over HTTP. The token lives in this tab only.

const KEY = "diffmark-token";
const TRIES = 6;
let token = sessionStorage.getItem(KEY);

export class Refusal extends Error {
  constructor(status, message, wait) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

export const signedIn = () => token !== null;

export function signOut() {
  token = null;
  sessionStorage.removeItem(KEY);
}

export async function signIn(text) {
  token = text;
  try {
    const caller = await get("/v1/me");
    sessionStorage.setItem(KEY, text);
    return caller;
  } catch (error) {
    signOut();
    throw error;
  }
}

export const whoAmI = () => get("/v1/me");
export const history = (last) => get(`/v1/audit?last=${last}`);

// One image; `onProgress(share)` while it is sent, `onWait(seconds)` when the service is busy and asks for patience.
export async function examine(file, reason, onProgress, onWait) {
  for (let attempt = 1; ; attempt += 1) {
    const form = new FormData();
    form.append("image", file, file.name);
    form.append("reason", reason);
    try {
      return await send("POST", "/v1/examine", form, onProgress);
    } catch (error) {
      if (![429, 503].includes(error.status) || attempt === TRIES) throw error;
      onWait(error.wait);
      await new Promise((resolve) => setTimeout(resolve, 1000 * error.wait));
    }
  }
}

const get = (path) => send("GET", path);

// XMLHttpRequest rather than fetch: it tells how much of an upload is through.
function send(method, path, body = null, onProgress = () => {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, path);
    request.setRequestHeader("Authorization", `Bearer ${token}`);
    request.responseType = "json";
    request.upload.onprogress = (event) => onProgress(event.loaded / event.total);
    request.onerror = () => reject(new Refusal(0, "The service cannot be reached."));
    request.onload = () => {
      const { status, response } = request;
      if (status >= 200 && status < 300) {
        resolve(response);
        return;
      }
      const detail = typeof response?.detail === "string" ? response.detail : `The service answered ${status}.`;
      reject(new Refusal(status, detail, Number(request.getResponseHeader("Retry-After")) || 2));
    };
    request.send(body);
  });
}
