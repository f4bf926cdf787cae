import { createHash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Changes } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import {
  type Envelope,
  type EnvelopeSubject,
  envelopeText,
  findEnvelope,
} from '../../db/requests/envelope.ts';
import { keyRefusal } from '../http/auth.ts';
import { readInTurn } from '../http/overload.ts';
import { pathId, valuesOf } from '../http/parameters.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { problem } from '../problems.ts';

/** Both polls: from PostgreSQL (api/README.md, Polling). */
export function pollHandlers(db: Database, changes: Changes) {
  return {
    getRequest: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { requestId } = valuesOf({ requestId: pathId(request, 'request_id') });
      return await poll(db, changes, { organizationId, requestId }, request, h);
    },
    getBatch: async (request, h) => {
      const { organizationId } = request.auth.credentials;
      const { batchId } = valuesOf({ batchId: pathId(request, 'batch_id') });
      return await poll(db, changes, { organizationId, batchId }, request, h);
    },
  } satisfies Record<string, Lifecycle.Method>;
}

async function poll(
  db: Database,
  changes: Changes,
  subject: EnvelopeSubject,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
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
  const first = await readInTurn(request, look);
  const known = request.headers['if-none-match'];
  const wait = preferredWait(request);
  // A client that names what it knows waits for something else; any other waits for a change of what it asked for.
  const isNews = (envelope: Envelope) =>
    isFinal(envelope) ||
    (known === undefined
      ? stateOf(envelope) !== stateOf(first)
      : !matches(known, etagOf(envelopeText(envelope, 'poll'))));
  const envelope =
    wait === 0 || isNews(first)
      ? first
      : await holdUntil(request, changes, first.batch.id, wait, lookAgain, isNews);
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
