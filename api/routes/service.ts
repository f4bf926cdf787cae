import { hash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { deflateSync, gzipSync } from 'node:zlib';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';
import { type Readiness as DatabaseReadiness, readiness } from '../../db/migrate.ts';
import { listElsewhere } from '../../db/workers.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { openapi } from '../openapi/document.ts';
import type { TemporalDeps } from '../temporal.ts';

/** Time for which a result of the check is reused, because anyone may ask at any rate. */
const READINESS_MS = 1000;
/** Longest wait for a check. By default, Kubernetes waits one second. */
const PATIENCE_MS = 800;

/**
 * Checks whether the API can serve. To serve, it needs PostgreSQL up and migrated, and the workers
 * must not all be on another namespace or queue.
 */
export class Readiness {
  readonly #db: Database;
  readonly #place: { readonly namespace: string; readonly taskQueue: string };
  #known: State | null = null;
  #checked: Promise<State> | null = null;
  #nextCheckAt = 0;

  constructor({ db, client, taskQueue }: TemporalDeps & { readonly db: Database }) {
    this.#db = db;
    this.#place = { namespace: client.options.namespace, taskQueue };
  }

  /** Returns `ready`, or the reason why the API can't serve. */
  async check(): Promise<string> {
    if (this.#checked === null || performance.now() >= this.#nextCheckAt) {
      const checking = this.#look();
      this.#checked = checking;
      // A slow check is not an outage yet. Until it ends, the last result holds.
      if (this.#known)
        this.#checked = Promise.race([checking, delay(PATIENCE_MS, this.#known, { ref: false })]);
    }
    return await this.#checked;
  }

  async #look(): Promise<State> {
    const nextAt = performance.now() + READINESS_MS;
    // Prevents a second check while one hangs, because each holds a connection.
    this.#nextCheckAt = Number.POSITIVE_INFINITY;
    let state: State;
    try {
      state = await readiness(this.#db);
      const elsewhere = state === 'ready' ? await listElsewhere(this.#db, this.#place) : [];
      if (elsewhere.length > 0) state = 'worker_elsewhere';
    } catch {
      // PostgreSQL went down between the two statements.
      state = 'database_away';
    }
    this.#nextCheckAt = nextAt;
    this.#known = state;
    return state;
  }
}

type State = DatabaseReadiness | 'worker_elsewhere';

/**
 * Returns the handlers for an organization's credits and, without a key, for liveness, readiness,
 * and the OpenAPI document.
 */
export function serviceHandlers({ db }: { readonly db: Database }) {
  return {
    // balance = total − used − held (api/docs/lifecycle.md, Credits).
    getCredits: async (request) => {
      const { available, total, used } = await readInTurn(request, (owner) => balanceOf(db, owner));
      return { balance: available, total, used };
    },
    getHealth: () => ({ status: 'ok' }),
    getReadiness: async ({ server }, h) => {
      const status = await server.app.readiness();
      const response = h.response({ status });
      if (status === 'ready') return response;
      return response.code(503).header('retry-after', '5');
    },
    getDescription: published('application/json', JSON.stringify(openapi, null, 1)),
  } satisfies Record<string, Lifecycle.Method>;
}

/**
 * Returns a handler for a text that is the same for all clients until the next release. It is
 * compressed once, for all requests. Each address may ask as often as the flood guard allows. hapi
 * handles If-None-Match.
 */
export function published(
  type: string,
  text: string,
): (request: Request, h: ResponseToolkit) => ResponseObject {
  const etag = hash('sha256', text, 'base64url').slice(0, 27);
  const compressed: ReadonlyMap<string, Buffer> = new Map([
    ['gzip', gzipSync(text)],
    ['deflate', deflateSync(text)],
  ]);
  return (request, h) => {
    const flooded = request.server.app.countReader(request);
    if (flooded) throw flooded;
    const encoding = request.info.acceptEncoding;
    const body = compressed.get(encoding);
    const response = h
      .response(body ?? text)
      .type(type)
      .etag(etag)
      .vary('accept-encoding');
    if (body) response.compressed(encoding);
    return response.header('cache-control', 'public, max-age=300');
  };
}
