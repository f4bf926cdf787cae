import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { type Changes, endOf } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import {
  type EnvelopeState,
  type EnvelopeSubject,
  envelopeText,
  findEnvelope,
  findEnvelopeState,
} from '../../db/requests/envelope.ts';
import { keyRefusal } from '../http/auth.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { idsOf } from '../http/validation.ts';
import { problem } from '../problems.ts';

/**
 * Returns the handlers of both polls, which read from PostgreSQL (api/docs/lifecycle.md, Polling).
 */
export function pollHandlers(db: Database, changes: Changes) {
  return {
    getRequest: (request, h) =>
      poll({ requestId: idsOf(request).request_id }, request, h, db, changes),
    getBatch: (request, h) => poll({ batchId: idsOf(request).batch_id }, request, h, db, changes),
  } satisfies Record<string, Lifecycle.Method>;
}

async function poll(
  asked: { readonly requestId: string } | { readonly batchId: string },
  request: Request,
  h: ResponseToolkit,
  db: Database,
  changes: Changes,
): Promise<ResponseObject> {
  const subject: EnvelopeSubject = {
    ...asked,
    organizationId: request.auth.credentials.organizationId,
  };
  const known: unknown = request.headers['if-none-match'];
  const wait = preferredWait(request);
  const answer = (response: ResponseObject, state: EnvelopeState) => {
    applied(response.header('etag', `"${etagOf(state)}"`), wait);
    return state.isFinal ? response : response.header('retry-after', retryAfter(state));
  };
  const look = async () => (await findEnvelopeState(db, subject)) ?? refuse(subject);
  if (wait) {
    const first = await readInTurn(request, look);
    // With If-None-Match, the client waits for a different ETag. Without it, the client waits for a
    // change of the requested statuses.
    const isNews = (state: EnvelopeState) =>
      state.isFinal ||
      (wait.until === 'change' &&
        (known === undefined ? state.statuses !== first.statuses : !matches(known, etagOf(state))));
    const lookAgain = async () => {
      const refused = await keyRefusal(request, db);
      if (refused) throw refused;
      return isNews(await look());
    };
    const [id = ''] = Object.values(asked);
    // The ETag changes with the whole batch.
    const watched = wait.until === 'end' ? endOf(id) : known === undefined ? id : first.batchId;
    if (!isNews(first)) await holdUntil(request, changes, watched, wait.seconds, lookAgain);
  }
  if (known !== undefined) {
    const state = await readInTurn(request, look);
    if (matches(known, etagOf(state))) return answer(h.response().code(304), state);
  }
  const envelope = (await readInTurn(request, () => findEnvelope(db, subject))) ?? refuse(subject);
  return answer(h.response(envelopeText(envelope, 'poll')).type('application/json'), envelope);
}

function refuse(subject: EnvelopeSubject): never {
  throw problem('requestId' in subject ? 'request_not_found' : 'batch_not_found');
}

function etagOf({ version }: EnvelopeState): string {
  return hash('sha256', version, 'base64url').slice(0, 27);
}

/** Compares a list of entity tags weakly (RFC 9110, section 13.1.2). */
function matches(header: unknown, etag: string): boolean {
  if (typeof header !== 'string') return false;
  return header
    .split(',')
    .some((tag) => tag.trim() === '*' || tag.trim().replace(/^W\//, '') === `"${etag}"`);
}

/**
 * Returns the seconds until the next poll. Most lookups end within seconds and the rest take
 * minutes, so the interval grows with age.
 */
function retryAfter({ ageMs }: EnvelopeState): string {
  return String(Math.min(30, Math.max(1, Math.round(ageMs / 5000))));
}
