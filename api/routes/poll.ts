import { hash } from 'node:crypto';
import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { type Changes, endOf } from '../../db/connection/changes.ts';
import type { Database } from '../../db/connection/client.ts';
import {
  type Envelope,
  type EnvelopeState,
  type EnvelopeSubject,
  envelopeText,
  findEnvelope,
  findEnvelopeState,
} from '../../db/requests/envelope.ts';
import { keyRefusal } from '../http/auth.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { unknownId } from '../http/unknown-id.ts';
import { idsOf } from '../http/validation.ts';
import type { ApiError } from '../problems.ts';

/**
 * Returns the handlers with which clients poll a request or a batch (api/docs/lifecycle.md,
 * Polling).
 */
export function pollHandlers(db: Database, changes: Changes) {
  return {
    getRequest: (request, h) =>
      poll({ requestId: idsOf(request).request_id }, request, h, db, changes),
    getBatch: (request, h) =>
      poll({ batchId: idsOf(request).batch_id }, request, h, db, changes),
  } satisfies Record<string, Lifecycle.Method>;
}

async function poll(
  asked: { readonly requestId: string } | { readonly batchId: string },
  request: Request,
  h: ResponseToolkit,
  db: Database,
  changes: Changes,
): Promise<ResponseObject> {
  const { organizationId } = request.auth.credentials;
  const subject: EnvelopeSubject = { ...asked, organizationId };
  const [id = ''] = Object.values(asked);
  const wait = preferredWait(request);
  if (wait) await waitForNews(request, id, subject, wait, db, changes);
  const withHeaders = (response: ResponseObject, state: EnvelopeState) => {
    applied(response.header('etag', `"${etagOf(state)}"`), wait);
    return state.isFinal ? response : response.header('retry-after', retryAfter(state));
  };
  const known: unknown = request.headers['if-none-match'];
  if (known !== undefined) {
    const state = await readInTurn(request, () => readState(db, subject));
    if (matches(known, etagOf(state))) {
      return withHeaders(h.response().code(304), state);
    }
  }
  const envelope = await readInTurn(request, () => readEnvelope(db, subject));
  return withHeaders(
    h.response(envelopeText(envelope, 'poll')).type('application/json'),
    envelope,
  );
}

/**
 * Waits until the request or batch is final. If the client sent `until=change`, the first change
 * also ends the wait. With If-None-Match, a change is an ETag that differs from the client's.
 * Without If-None-Match, it is a status that differs from the one at the start of the wait.
 */
async function waitForNews(
  request: Request,
  id: string,
  subject: EnvelopeSubject,
  { seconds, until }: NonNullable<ReturnType<typeof preferredWait>>,
  db: Database,
  changes: Changes,
): Promise<void> {
  const known: unknown = request.headers['if-none-match'];
  const first = await readInTurn(request, () => readState(db, subject));
  const isNews = (state: EnvelopeState) => {
    if (state.isFinal) return true;
    if (until === 'end') return false;
    if (known === undefined) return state.statuses !== first.statuses;
    return !matches(known, etagOf(state));
  };
  if (isNews(first)) return;
  let watched = endOf(id);
  // The ETag of a single request also depends on its batch, so with an ETag, watch the batch.
  if (until === 'change') {
    watched = known === undefined ? id : first.batchId;
  }
  await holdUntil(request, changes, watched, seconds, async () => {
    const refused = await keyRefusal(request, db);
    if (refused) throw refused;
    return isNews(await readState(db, subject));
  });
}

/** @throws {ApiError} 404 if the organization has no request or batch with this id */
async function readEnvelope(db: Database, subject: EnvelopeSubject): Promise<Envelope> {
  const envelope = await findEnvelope(db, subject);
  if (!envelope) throw await unknownSubject(db, subject);
  return envelope;
}

/** @throws {ApiError} 404 if the organization has no request or batch with this id */
async function readState(db: Database, subject: EnvelopeSubject): Promise<EnvelopeState> {
  const state = await findEnvelopeState(db, subject);
  if (!state) throw await unknownSubject(db, subject);
  return state;
}

function unknownSubject(db: Database, subject: EnvelopeSubject): Promise<ApiError> {
  const { organizationId } = subject;
  if ('requestId' in subject)
    return unknownId(db, 'request_not_found', organizationId, subject.requestId);
  return unknownId(db, 'batch_not_found', organizationId, subject.batchId);
}

function etagOf({ version }: EnvelopeState): string {
  return hash('sha256', version, 'base64url').slice(0, 27);
}

/**
 * Returns true if an If-None-Match header contains the ETag or `*`. Uses weak comparison (RFC 9110,
 * section 13.1.2).
 */
function matches(header: unknown, etag: string): boolean {
  if (typeof header !== 'string') return false;
  const tags = header.split(',').map((tag) => tag.trim());
  return tags.some((tag) => tag === '*' || tag.replace(/^W\//, '') === `"${etag}"`);
}

/**
 * Returns the seconds after which the client should poll again. Most lookups end within seconds,
 * and the others take minutes. So the interval grows with the age of the request.
 */
function retryAfter({ ageMs }: EnvelopeState): string {
  const seconds = Math.round(ageMs / 5000);
  return String(Math.min(30, Math.max(1, seconds)));
}
