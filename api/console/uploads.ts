import type { Lifecycle, Request, ResponseObject } from '@hapi/hapi';
import type { Database } from '../../db/connection/client.ts';
import { isId } from '../../db/connection/ids.ts';
import { readResults, type ShownItem } from '../../db/requests/envelope.ts';
import { readLookupHealth } from '../../db/uploads/parts.ts';
import {
  continueUpload,
  countFound,
  countUploadResults,
  deleteUpload,
  findUpload,
  listUploadBatches,
  listUploads,
  readOutline,
  repeatFailed,
  stopUpload,
  type Upload,
} from '../../db/uploads/uploads.ts';
import type { StopReason } from '../../db/words.ts';
import { startUpload } from '../../workflows/starts.ts';
import { cellsOf } from '../files/result-rows.ts';
import { CallFailed } from '../http/call-api.ts';
import { sendFile } from '../http/file.ts';
import { factsOf } from '../routes/check.ts';
import type { Starter } from '../temporal.ts';
import { offerOf } from './again.ts';
import { Filling, npisWithFacts } from './outline.ts';
import { page } from './page.ts';
import { factCells } from './people.ts';
import { remainingTime } from './remaining.ts';

// Uploads: a visitor starts a draft (drafts.ts). A workflow submits its NPIs, and the visitor
// downloads the file with the results.

declare module '@hapi/hapi' {
  interface RequestApplicationState {
    /** The owner of the session's key. Set only for pages that do not call the API. */
    caller: Request['auth']['credentials'];
  }
}

export interface UploadPagesDeps {
  readonly db: Database;
  readonly starter: Starter;
}

export const UPLOADS = '/console/uploads';
export const UPLOAD = `${UPLOADS}/{upload_id}`;

const STOPPED: Readonly<Record<StopReason, string>> = {
  customer:
    'You stopped this upload. NPIs that were already submitted are still looked up.',
  operator: 'Support stopped this upload. Ask them why.',
  credits:
    'Your credits are used up. Continue when you have more. Nothing is charged twice.',
  key: 'The API key that started this upload is no longer valid. Continue to use the key of this session.',
};

/** The reasons in the result for NPIs that were not submitted. */
const NOT_ASKED: Readonly<Record<StopReason, string>> = {
  customer: 'stopped by you',
  operator: 'stopped by support',
  credits: 'not enough credits',
  key: 'API key no longer valid',
};

/** Returns the handlers of the pages of uploads (api/docs/console.md, Uploads). */
export function uploadHandlers(deps: UploadPagesDeps) {
  const { db } = deps;
  return {
    list: (request, h) => listPage(deps, request, h, ''),
    continue: async (request, h) => {
      const upload = await requireUpload(db, request);
      const { keyId } = request.app.caller;
      const continuing = () => continueUpload(db, idOf(request), keyId);
      const isContinued = await request.app.place.inTurn(continuing);
      if (isContinued) {
        await startSubmitting(deps, request, 'TERMINATE_EXISTING');
      }
      return h.redirect(pathOf(upload)).code(303);
    },
    again: async (request, h) => {
      const upload = await requireUpload(db, request);
      const { keyId } = request.app.caller;
      const repeating = () => repeatFailed(db, idOf(request), keyId);
      const isRepeated = await request.app.place.inTurn(repeating);
      // The earlier workflow may be about to end, so it is not left to do this.
      if (isRepeated) {
        await startSubmitting(deps, request, 'TERMINATE_EXISTING');
      }
      return h.redirect(pathOf(upload)).code(303);
    },
    stop: async (request, h) => {
      const upload = await requireUpload(db, request);
      await request.app.place.inTurn(() => stopUpload(db, idOf(request)));
      return h.redirect(pathOf(upload)).code(303);
    },
    delete: async (request, h) => {
      await requireUpload(db, request);
      const deleting = () => deleteUpload(db, idOf(request));
      if (await request.app.place.inTurn(deleting)) {
        return h.redirect(UPLOADS).code(303);
      }
      const detail = "A running upload can't be deleted. Stop it first.";
      throw new CallFailed(409, { detail });
    },
    results: (request, h) => sendResults(deps, request, h),
  } satisfies Record<string, Lifecycle.Method>;
}

export type Toolkit = Parameters<Lifecycle.Method>[1];

export function idOf(request: Request) {
  const { organizationId } = request.app.caller;
  return { organizationId, uploadId: String(request.params.upload_id) };
}

export function pathOf({ id }: Pick<Upload, 'id'>): string {
  return `${UPLOADS}/${id}`;
}

/** The endings of files that we read. The name of an upload may have other dots. */
const FILE_ENDING = /\.(?:csv|tsv|txt|xlsx|xlsm)$/i;

/** Sends the file with the results so far, as CSV. */
async function sendResults(
  { db }: UploadPagesDeps,
  request: Request,
  h: Toolkit,
): Promise<ResponseObject> {
  const upload = await requireUpload(db, request);
  const { id, startedAt, stopReason, fileName } = upload;
  if (startedAt === null) return h.redirect(pathOf(upload));
  const missing = stopReason === null ? 'not submitted yet' : NOT_ASKED[stopReason];
  const name = encodeURIComponent(`${fileName.replace(FILE_ENDING, '')}-enriched.csv`);
  return await sendFile(request, h, `filename*=UTF-8''${name}`, async (send) => {
    const { organizationId } = request.app.caller;
    const results = new Map<string, ShownItem>();
    await readResults(
      db,
      organizationId,
      await listUploadBatches(db, id),
      async (items) => {
        for (const item of items) results.set(item.npi, item);
      },
    );
    const filling = new Filling((npi) => cellsOf(results.get(npi), missing));
    let isKnown = false;
    await readOutline(db, idOf(request), async (part) => {
      isKnown = true;
      const text = filling.take(part);
      const facts = await factsOf(db, organizationId, npisWithFacts(text));
      await send(filling.fill(text, (npi) => factCells(facts.get(npi))));
    });
    // It was deleted in the meantime.
    if (!isKnown) throw noUpload();
  });
}

export async function progressPage(
  { db }: UploadPagesDeps,
  request: Request,
  h: Toolkit,
  upload: Upload,
): Promise<ResponseObject> {
  const results = await countUploadResults(db, upload.id);
  const { final, submitted, total, stopReason, submittedAt, requestedType } = upload;
  const canRepeat = submittedAt !== null && final === total && results.failed > 0;
  const isRunning = stopReason === null && final < total;
  const canStop = isRunning && submitted < total;
  const isWaiting = canStop && (await readLookupHealth(db, upload.id)).isFailing;
  let remaining = '';
  if (isRunning && !isWaiting) {
    const batchIds = await listUploadBatches(db, upload.id);
    const rest = { batchIds, left: total - final, isSubmitting: canStop };
    remaining = await remainingTime(db, rest);
  }
  return page(request, h, 'upload', {
    ...listedUpload(upload),
    title: upload.fileName,
    ...results,
    again: canRepeat && offerOf(results.failed, requestedType ?? 'any'),
    percent: Math.floor((100 * final) / total),
    stopped: stopReason && STOPPED[stopReason],
    needsCredits: stopReason === 'credits',
    canContinue: stopReason !== null && stopReason !== 'operator',
    isRunning,
    canStop,
    isWaiting,
    remaining,
    // The results of submitted NPIs still arrive after a stop.
    isOpen: isRunning || final < submitted,
  });
}

/** @throws {CallFailed} 404 if the organization of the session has no such upload */
export async function requireUpload(db: Database, request: Request): Promise<Upload> {
  const id = idOf(request);
  // PostgreSQL rejects some texts, such as those with a NUL.
  const upload = isId('upl', id.uploadId) ? await findUpload(db, id) : null;
  if (!upload) throw noUpload();
  return upload;
}

export function noUpload(): CallFailed {
  const detail = 'There is no upload with this id. Uploads are deleted after seven days.';
  return new CallFailed(404, { detail });
}

const NOTHING_FOUND = { found: 0, credits: 0 };

/** Shows all uploads, and a problem of the file that the visitor chose. */
export async function listPage(
  { db }: UploadPagesDeps,
  request: Request,
  h: Toolkit,
  problem: string,
): Promise<ResponseObject> {
  const { organizationId } = request.app.caller;
  const found = await countFound(db, organizationId);
  const uploads = (await listUploads(db, organizationId)).map((upload) => ({
    ...listedUpload(upload),
    ...NOTHING_FOUND,
    ...found.get(upload.id),
  }));
  const context = { title: 'Uploads', uploads, problem };
  return page(request, h, 'uploads', context).code(problem === '' ? 200 : 422);
}

/** Starts the workflow of an upload. If Temporal is down, the sweep starts it later. */
export async function startSubmitting(
  { starter }: UploadPagesDeps,
  request: Request,
  running?: 'TERMINATE_EXISTING',
): Promise<void> {
  const upload = idOf(request);
  await starter.start((...temporal) => startUpload(...temporal, upload, running));
}

export function listedUpload(upload: Upload) {
  const { startedAt, stopReason, final, total } = upload;
  let status = 'in-progress';
  if (startedAt === null) status = 'draft';
  else if (stopReason !== null) status = 'stopped';
  else if (final === total) status = 'completed';
  return { ...upload, status };
}
