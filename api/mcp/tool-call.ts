import type { Request } from '@hapi/hapi';
import type { ServerContext } from '@modelcontextprotocol/server';
import { type CallFailed, callApi } from '../http/call-api.ts';
import { whenOver } from '../http/overload.ts';
import { MAX_WAIT_S } from '../http/prefer.ts';
import TEXTS from './descriptions.json' with { type: 'json' };

/**
 * The longest time for one look at a batch. After each look, the client is notified of the progress.
 * A look goes on after the client has disconnected, so it must be short.
 */
const LOOK_S = 10;
/** A timer may end this much too early. */
const SLACK_MS = 100;

/** Thrown if a tool can't do what the assistant wants. The message says what to change. */
export class ToolFault extends Error {}

/** Replaces `{name}` in a text of descriptions.json by the value with this name. */
export function fillText(
  text: string,
  values: Readonly<Record<string, string | number>>,
): string {
  return text.replaceAll(/\{(\w+)\}/g, (_, name: string) => String(values[name]));
}

/** Returns the text of an error of the API in the words of tools. */
export function toolText(error: CallFailed): string {
  const texts: Readonly<Record<string, string>> = TEXTS.faults;
  return texts[error.problemCode] ?? error.text();
}

/** A response for which a tool has waited. */
interface Look<T> {
  readonly body: T;
  /** False if it makes no sense to wait for longer. */
  readonly canGoOn: boolean;
}

/**
 * One call of a tool. The tool calls the API with the key of the request, and must end 55 seconds
 * after the request has arrived. The request has counted toward the rate limit, so the first call of
 * the API does not count again.
 */
export class ToolCall {
  readonly #request: Request;
  readonly #context: ServerContext;
  readonly #credentials: Record<string, string> = {};
  /** The steps that an earlier part of the call has done. The progress goes on after them. */
  stepsBefore = 0;
  #isFirst = true;
  #isAbandoned = false;

  constructor(request: Request, context: ServerContext) {
    this.#request = request;
    this.#context = context;
    for (const name of ['authorization', 'x-api-key']) {
      const value: unknown = request.headers[name];
      if (typeof value === 'string') this.#credentials[name] = value;
    }
    whenOver(request, () => {
      this.#isAbandoned = true;
    });
  }

  /** @throws {CallFailed} if the response is an error */
  async get<T>(path: string): Promise<T> {
    const { body } = await this.#call<T>(path, {});
    return body;
  }

  /**
   * @param headers headers in addition to the key
   * @throws {CallFailed} if the response is an error
   */
  async post<T>(path: string, payload: object, headers = {}): Promise<T> {
    const { body } = await this.#call<T>(path, headers, payload);
    return body;
  }

  /**
   * Waits until a batch or request is final, but for at most ten seconds.
   * @throws {CallFailed} if the response is an error
   */
  async look<T>(path: string): Promise<Look<T>> {
    const seconds = Math.min(LOOK_S, this.secondsLeft());
    const prefer = `wait=${seconds}`;
    const { body, waitedMs } = await this.#call<T>(path, { prefer });
    // The wait is shorter if too many requests wait, or if the server stops.
    const hasWaited = waitedMs > seconds * 1000 - SLACK_MS;
    return { body, canGoOn: hasWaited && this.secondsLeft() > 0 };
  }

  /** Returns 0 as soon as the client has disconnected or the server shuts down. */
  secondsLeft(): number {
    if (this.#isAbandoned || this.#request.server.app.isDraining) {
      return 0;
    }
    return Math.max(0, MAX_WAIT_S - Math.ceil(this.#elapsedMs() / 1000));
  }

  /** Notifies the client of the progress, if it asked for that. */
  async notify(done: number, steps: number, message: string): Promise<void> {
    const { _meta: meta, notify } = this.#context.mcpReq;
    const progressToken = meta?.progressToken;
    if (progressToken === undefined || this.#isAbandoned) return;
    // The protocol requires that each value is larger than the one before. The fraction is below 1.
    const progress = this.stepsBefore + done + this.#elapsedMs() / 100_000;
    const total = this.stepsBefore + steps;
    const params = { progressToken, progress, total, message };
    // It fails if the client has just disconnected.
    await notify({ method: 'notifications/progress', params }).catch(() => {});
  }

  #elapsedMs(): number {
    return Date.now() - this.#request.info.received;
  }

  async #call<T>(path: string, headers: Record<string, string>, body?: object) {
    const isCounted = this.#isFirst;
    this.#isFirst = false;
    const begun = performance.now();
    try {
      return await callApi<T>(this.#request, path, {
        method: body ? 'POST' : 'GET',
        headers: { ...headers, ...this.#credentials },
        body,
        isCounted,
      });
    } finally {
      // The metrics have the time of each call of the API. A long list is not one slow request.
      const { app } = this.#request;
      app.waitedMs = (app.waitedMs ?? 0) + performance.now() - begun;
    }
  }
}
