import { eventually } from './organization.ts';

/** A browser without scripts: it keeps cookies, follows redirects, and sends forms. */
export class Visitor {
  readonly #baseUrl: string;
  readonly #cookies = new Map<string, string>();

  constructor(baseUrl: string) {
    this.#baseUrl = baseUrl;
  }

  /** Returns the header with its cookies. */
  cookie(): string {
    return [...this.#cookies].map(([name, value]) => `${name}=${value}`).join('; ');
  }

  /** Returns a browser with copies of the cookies. */
  copy(): Visitor {
    const copy = new Visitor(this.#baseUrl);
    for (const [name, value] of this.#cookies) copy.#cookies.set(name, value);
    return copy;
  }

  async get(path: string, headers: Record<string, string> = {}): Promise<Seen> {
    return await this.send(path, { headers });
  }

  /** Gets a file. Repeats the request while the place of the organization's last file is not free. */
  async file(path: string): Promise<Seen> {
    return await eventually(async () => {
      const seen = await this.get(path);
      return seen.status === 429 ? null : seen;
    });
  }

  /** Sends a form with the token of the page that was seen last. */
  async post(
    path: string,
    fields: Record<string, string>,
    headers: Record<string, string> = {},
  ): Promise<Seen> {
    const body = new URLSearchParams(fields);
    return await this.send(path, { method: 'POST', body, headers });
  }

  /** Sends a form with a file. */
  async upload(path: string, token: string, file: File): Promise<Seen> {
    const body = new FormData();
    body.set('file', file);
    return await this.send(`${path}?form_token=${token}`, { method: 'POST', body });
  }

  async signIn(apiKey: string): Promise<Seen> {
    const { token } = await this.get('/console/sign-in');
    return await this.post('/console/sign-in', { form_token: token, api_key: apiKey });
  }

  /**
   * Sends a request as it is given, and follows redirects. Repeats the request while the service is
   * at capacity, because many tests read files at the same time.
   */
  async send(path: string, init: RequestInit): Promise<Seen> {
    const response = await eventually(async () => {
      const response = await fetch(new URL(path, this.#baseUrl), {
        ...init,
        headers: { ...init.headers, cookie: this.cookie() },
        redirect: 'manual',
      });
      return response.status === 503 ? null : response;
    });
    for (const line of response.headers.getSetCookie()) {
      const [, name = '', value = ''] = /^([^=]+)=([^;]*)/.exec(line) ?? [];
      if (/max-age=0/i.test(line)) this.#cookies.delete(name);
      else this.#cookies.set(name, value);
    }
    const to = response.headers.get('location');
    if (to !== null) {
      await response.text();
      return await this.get(to);
    }
    const text = await response.text();
    const token = /name="form_token" value="([^"]+)"/.exec(text)?.[1] ?? '';
    const { status, headers } = response;
    return { path, status, headers, text, token };
  }
}

/** A page that a visitor has seen. */
export interface Seen {
  readonly path: string;
  readonly status: number;
  readonly headers: Headers;
  readonly text: string;
  readonly token: string;
}
