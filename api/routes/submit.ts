import { createHash } from 'node:crypto';
import type { Request, ResponseObject, ResponseToolkit, Server } from '@hapi/hapi';
import type { Client } from '@temporalio/client';
import type Joi from 'joi';
import type { Logger } from 'pino';
import type { Changes } from '../../db/changes.ts';
import type { Database } from '../../db/client.ts';
import { findEnvelope } from '../../db/requests/envelope.ts';
import { markStarted } from '../../db/requests/outbox.ts';
import { type BatchStart, type SubmitCommand, type SubmitRules, submit } from '../../db/requests/submit.ts';
import type { SubmittedAs } from '../../db/words.ts';
import { keyRefusal } from '../http/auth.ts';
import { invalid, type Problem, problem } from '../http/errors.ts';
import { canonicalJson, memberText, readJson, UNREAD_BODY } from '../http/json-body.ts';
import { applied, holdUntil, preferredWait } from '../http/prefer.ts';
import { startBatch } from '../start.ts';
import { bulkBody, IDEMPOTENCY_KEY, type SubmitBody, singleBody, validateSubmit } from './submit-body.ts';

export interface SubmitDeps {
  readonly db: Database;
  readonly log: Logger;
  readonly client: Client;
  readonly taskQueue: string;
  readonly rules: SubmitRules;
  readonly forbids: (url: URL) => boolean;
  readonly changes: Changes;
}

/** `POST /api/v1/email` and `POST /api/v1/email/bulk` (api/README.md, Submitting). */
export function registerSubmit(server: Server, deps: SubmitDeps): void {
  const route = (path: string, submittedAs: SubmittedAs, schema: Joi.ObjectSchema) => {
    server.route({
      method: 'POST',
      path,
      options: { payload: UNREAD_BODY },
      handler: (request, h) => accept(request, h, submittedAs, schema, deps),
    });
  };
  route('/api/v1/email', 'single', singleBody);
  route('/api/v1/email/bulk', 'bulk', bulkBody);
}

async function accept(
  request: Request,
  h: ResponseToolkit,
  submittedAs: SubmittedAs,
  schema: Joi.ObjectSchema,
  deps: SubmitDeps,
): Promise<ResponseObject> {
  const key = idempotencyKey(request);
  const body = await parseBody(request, schema, deps.forbids, key.problems);
  const { organizationId, keyId: apiKeyId } = request.auth.credentials;
  const command: SubmitCommand = {
    organizationId,
    apiKeyId,
    submittedAs,
    ...body,
    idempotency:
      key.value === null
        ? null
        : {
            key: key.value,
            method: 'POST',
            path: request.route.path,
            fingerprint: fingerprint(body),
          },
  };
  const outcome = await submit(deps.db, command, deps.rules);
  switch (outcome.kind) {
    case 'accepted': {
      const { batchId } = outcome.start;
      deps.log.info(
        { organization_id: organizationId, batch_id: batchId, total: body.npis.length },
        'batch accepted',
      );
      await start(deps, outcome.start);
      const wait = preferredWait(request);
      // A key that ends meanwhile ends the wait; what was accepted with it stays accepted.
      const look = async () =>
        (await keyRefusal(request, deps.db)) !== null ||
        (await findEnvelope(deps.db, { organizationId, batchId }))?.batch.status === 'completed';
      if (wait > 0) {
        // It is accepted, and an answer other than 202 would deny it: a wait that fails is over.
        await holdUntil(request, deps.changes, batchId, wait, look, (isOver) => isOver).catch((error) => {
          deps.log.warn({ err: error, batch_id: batchId }, 'wait ended early');
        });
      }
      // Byte for byte what a repeated Idempotency-Key gets, waited for or not.
      return applied(h.response(outcome.response).code(202).type('application/json'), wait);
    }
    case 'repeated':
      return h
        .response(outcome.response)
        .code(202)
        .type('application/json')
        .header('idempotent-replayed', 'true');
    case 'mismatch':
      throw invalid([
        {
          loc: ['header', 'Idempotency-Key'],
          msg: 'Idempotency-Key was already used with a different body',
          type: 'idempotency_key_mismatch',
        },
      ]);
    case 'running':
      throw problem(
        409,
        'idempotency_in_progress',
        'The first request with this Idempotency-Key is still running.',
        {
          headers: { 'retry-after': '1' },
        },
      );
    case 'insufficient': {
      const { required, available } = outcome;
      const members = { required, available, shortfall: required - available };
      const detail = `This submit needs ${required} credits and ${available} are available. Nothing was queued.`;
      throw problem(402, 'insufficient_credits', detail, { members });
    }
    default:
      return outcome satisfies never;
  }
}

/** The batch is committed: whatever happens here, the sweep starts what this does not. */
async function start(deps: SubmitDeps, batch: BatchStart): Promise<void> {
  try {
    await startBatch(deps.client, deps.taskQueue, batch);
    await markStarted(deps.db, batch.batchId);
  } catch (error) {
    deps.log.warn({ err: error, batch_id: batch.batchId }, 'batch not started yet, the sweep will');
  }
}

async function parseBody(
  request: Request,
  schema: Joi.ObjectSchema,
  forbids: (url: URL) => boolean,
  headerProblems: readonly Problem[],
): Promise<SubmitBody> {
  const body = await readJson(request.raw.req);
  if ('loc' in body) throw invalid([body, ...headerProblems]);
  const { text, value } = body;
  const customData =
    isObject(value) && Object.hasOwn(value, 'custom_data') ? memberText(text, 'custom_data') : null;
  const result = validateSubmit(schema, value, { customData, forbids });
  const problems = 'problems' in result ? result.problems : [];
  if ('problems' in result || headerProblems.length > 0) throw invalid([...problems, ...headerProblems]);
  return result.value;
}

function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function idempotencyKey(request: Request): {
  readonly value: string | null;
  readonly problems: readonly Problem[];
} {
  const header: unknown = request.headers['idempotency-key'];
  if (header === undefined) return { value: null, problems: [] };
  if (typeof header === 'string' && IDEMPOTENCY_KEY.test(header))
    return { value: header.replace(/^"(.*)"$/, '$1'), problems: [] };
  return {
    value: null,
    problems: [
      {
        loc: ['header', 'Idempotency-Key'],
        msg: 'Idempotency-Key should have 1 to 255 visible ASCII characters',
        type: 'idempotency_key_invalid',
      },
    ],
  };
}

/** Two bodies that mean the same have the same fingerprint, whatever their spelling. */
function fingerprint({ npis, wantedType, webhook, customData }: SubmitBody): Buffer {
  const meaning = { npis, wantedType, webhook: webhook && { url: webhook.url, mode: webhook.mode } };
  const data = customData === null ? 'null' : canonicalJson(customData);
  return createHash('sha256')
    .update(`${canonicalJson(JSON.stringify(meaning))}${data}`)
    .digest();
}
