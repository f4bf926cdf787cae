import { createHash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Database } from '../../db/client.ts';
import {
  type Envelope,
  type EnvelopeSubject,
  envelopeText,
  findEnvelope,
} from '../../db/requests/envelope.ts';
import { keyRefusal } from '../http/auth.ts';
import type { Lanes } from '../http/overload.ts';
import { pathId, valuesOf } from '../http/parameters.ts';
import { applied, holdUntil, preferredWait, type WaitDeps } from '../http/prefer.ts';
import { problem } from '../problems.ts';

export interface PollDeps extends WaitDeps {
  readonly db: Database;
  readonly reads: Lanes;
}

/** Both polls: from PostgreSQL (api/README.md, Polling). */
export function pollHandlers(deps: PollDeps) {
  return {
    getRequest: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { requestId } = valuesOf({ requestId: pathId(request, 'request_id') });
      return await poll(deps, { organizationId, requestId }, request, h);
    },
    getBatch: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { batchId } = valuesOf({ batchId: pathId(request, 'batch_id') });
      return await poll(deps, { organizationId, batchId }, request, h);
    },
  } satisfies Record<string, Lifecycle.Method>;
}

async function poll(
  deps: PollDeps,
  subject: EnvelopeSubject,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { db, reads } = deps;
  const look = async () => {
    const envelope = await findEnvelope(db, subject);
    if (!envelope) throw problem('requestId' in subject ? 'request_not_found' : 'batch_not_found');
    return envelope;
  };
  const lookAgain = async () => {
    const refused = await keyRefusal(request, db);
    if (refused) throw refused;
    return await look();
  };
  const first = await reads.inTurn(subject.organizationId, look);
  const known = request.headers['if-none-match'];
  const wait = preferredWait(request, deps);
  // A client that names what it knows waits for something else; any other waits for a change of what it asked for.
  const isNews = (envelope: Envelope) =>
    isFinal(envelope) ||
    (known === undefined
      ? stateOf(envelope) !== stateOf(first)
      : !matches(known, etagOf(envelopeText(envelope, 'poll'))));
  const envelope =
    wait === 0 || isNews(first)
      ? first
      : await holdUntil(
          request,
          deps,
          first.batch.id,
          wait,
          () => reads.inTurn(subject.organizationId, lookAgain),
          isNews,
        );
  const body = envelopeText(envelope, 'poll');
  const etag = etagOf(body);
  const retryAfter = retryAfterSeconds(envelope, Date.now());
  const unchanged = matches(known, etag);
  const response = unchanged ? h.response().code(304) : h.response(body).type('application/json');
  response.header('etag', `"${etag}"`);
  applied(response, wait);
  return retryAfter === null ? response : response.header('retry-after', String(retryAfter));
}

function isFinal({ items }: Envelope): boolean {
  return items.every(({ request }) => request.settledAt !== null);
}

/** The statuses of what was asked for: a single poll does not wake for its neighbors. */
function stateOf({ items }: Envelope): string {
  return items.map(({ request }) => request.status).join();
}

function etagOf(body: string): string {
  return createHash('sha256').update(body).digest('base64url').slice(0, 27);
}

/** RFC 9110, section 13.1.2: a list of entity tags, compared weakly. */
function matches(header: unknown, etag: string): boolean {
  if (typeof header !== 'string') return false;
  return header
    .split(',')
    .some((tag) => tag.trim() === '*' || tag.trim().replace(/^W\//, '') === `"${etag}"`);
}

/** Most lookups end within seconds, the rest takes minutes: ask soon at first, then ever more seldom. */
function retryAfterSeconds({ items }: Envelope, now: number): number | null {
  const open = items.filter(({ request }) => request.settledAt === null);
  if (open.length === 0) return null;
  const age = Math.max(...open.map(({ request }) => now - request.acceptedAt.getTime()));
  return Math.min(30, Math.max(1, Math.round(age / 5000)));
}
