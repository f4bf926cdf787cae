import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import type { Changes } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import {
  type EnvelopeState,
  type EnvelopeSubject,
  envelopeText,
  findEnvelope,
  findEnvelopeState,
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
  const known: unknown = request.headers['if-none-match'];
  const wait = preferredWait(request);
  const answer = (response: ResponseObject, state: EnvelopeState) => {
    applied(response.header('etag', `"${etagOf(state)}"`), wait);
    return state.isFinal ? response : response.header('retry-after', retryAfter(state, Date.now()));
  };
  if (known !== undefined || wait > 0) {
    const look = async () => (await findEnvelopeState(db, subject)) ?? refuse(subject);
    const lookAgain = async () => {
      const refused = await keyRefusal(request, db);
      if (refused) throw refused;
      return await look();
    };
    const first = await readInTurn(request, look);
    // A client that names what it knows waits for something else; any other waits for a change of what it asked for.
    const isNews = (state: EnvelopeState) =>
      state.isFinal ||
      (known === undefined ? state.statuses !== first.statuses : !matches(known, etagOf(state)));
    const last =
      wait === 0 || isNews(first)
        ? first
        : await holdUntil(request, changes, first.batchId, wait, lookAgain, isNews);
    if (matches(known, etagOf(last))) return answer(h.response().code(304), last);
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

/** RFC 9110, section 13.1.2: a list of entity tags, compared weakly. */
function matches(header: unknown, etag: string): boolean {
  if (typeof header !== 'string') return false;
  return header
    .split(',')
    .some((tag) => tag.trim() === '*' || tag.trim().replace(/^W\//, '') === `"${etag}"`);
}

/** Most lookups end within seconds, the rest takes minutes: ask soon at first, then ever more seldom. */
function retryAfter({ createdAt }: EnvelopeState, now: number): string {
  return String(Math.min(30, Math.max(1, Math.round((now - createdAt.getTime()) / 5000))));
}
