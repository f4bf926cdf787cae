import { hash } from 'node:crypto';
import { setTimeout as delay } from 'node:timers/promises';
import { deflateSync, gzipSync } from 'node:zlib';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Database } from '../../db/connection/client.ts';
import {
  type Readiness as DatabaseReadiness,
  readiness,
} from '../../db/operations/migrate.ts';
import { listElsewhere } from '../../db/operations/workers.ts';
import { openapiDocument } from '../openapi/document.ts';
import type { Site } from '../site.ts';
import type { TemporalDeps } from '../temporal.ts';

/**
 * The time for which the result of a readiness check is reused. The result is cached because
 * `/readyz` needs no key and has no rate limit.
 */
const READINESS_MS = 1000;
/**
 * The longest time to wait for a readiness check. It is below one second, the default time-out of a
 * Kubernetes probe.
 */
const PATIENCE_MS = 800;

/**
 * Checks whether the API can handle requests. PostgreSQL must be up and migrated. If workers are
 * running, at least one of them must use the same Temporal namespace and task queue as the API.
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

  /** Returns `ready`, or the reason why the API can't handle requests. */
  async check(): Promise<string> {
    if (this.#checked === null || performance.now() >= this.#nextCheckAt) {
      const checking = this.#look();
      this.#checked = checking;
      // A slow check does not mean that PostgreSQL is down. Until the check ends, the last result
      // is returned.
      if (this.#known)
        this.#checked = Promise.race([
          checking,
          delay(PATIENCE_MS, this.#known, { ref: false }),
        ]);
    }
    return await this.#checked;
  }

  async #look(): Promise<State> {
    const nextAt = performance.now() + READINESS_MS;
    // Prevents a second check while this one runs, because a check that hangs occupies a
    // connection.
    this.#nextCheckAt = Number.POSITIVE_INFINITY;
    let state: State;
    try {
      state = await readiness(this.#db);
      const elsewhere =
        state === 'ready' ? await listElsewhere(this.#db, this.#place) : [];
      if (elsewhere.length > 0) state = 'worker_elsewhere';
    } catch {
      // PostgreSQL went down between the two queries.
      state = 'database_away';
    }
    this.#nextCheckAt = nextAt;
    this.#known = state;
    return state;
  }
}

type State = DatabaseReadiness | 'worker_elsewhere';

/**
 * Returns the handlers for liveness and readiness, and for the OpenAPI document. They need no API
 * key.
 */
export function serviceHandlers({ site }: { readonly site: Site }) {
  const description = JSON.stringify(openapiDocument(site), null, 1);
  return {
    getHealth: () => ({ status: 'ok' }),
    getReadiness: async ({ server }, h) => {
      const status = await server.app.readiness();
      const response = h.response({ status });
      if (status === 'ready') return response;
      return response.code(503).header('retry-after', '5');
    },
    getDescription: published('application/json', description),
  } satisfies Record<string, Lifecycle.Method>;
}

/** Returns a handler that serves public content. It is compressed once. */
export function published(type: string, content: string | Buffer): PublicHandler {
  const compressed = new Map([
    ['gzip', gzipSync(content)],
    ['deflate', deflateSync(content)],
  ]);
  return publishedFile(type, content, compressed);
}

type PublicHandler = (request: Request, h: ResponseToolkit) => ResponseObject;

/**
 * Returns a handler that serves a public file, which changes only with a release. The flood guard
 * limits the requests of each address. hapi handles If-None-Match.
 * @param compressed the file in other encodings, by their names
 */
export function publishedFile(
  type: string,
  content: string | Buffer,
  compressed: ReadonlyMap<string, Buffer> = new Map(),
): PublicHandler {
  const etag = hash('sha256', content, 'base64url').slice(0, 27);
  return (request, h) => {
    const flooded = request.server.app.countReader(request);
    if (flooded) throw flooded;
    const encoding = request.info.acceptEncoding;
    const body = compressed.get(encoding);
    const response = h
      .response(body ?? content)
      .type(type)
      .etag(etag)
      .vary('accept-encoding');
    if (body) response.compressed(encoding);
    return response.header('cache-control', 'public, max-age=300');
  };
}
