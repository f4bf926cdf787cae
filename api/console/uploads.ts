import type { Readable } from 'node:stream';
import type { Lifecycle, Request, ResponseObject } from '@hapi/hapi';
import { isSandbox } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { isId } from '../../db/connection/ids.ts';
import { readResults, type ShownItem } from '../../db/requests/envelope.ts';
import { readLookupHealth } from '../../db/uploads/parts.ts';
import {
  continueUpload,
  countFound,
  countUploadResults,
  createUpload,
  deleteUpload,
  findUpload,
  listUploadBatches,
  listUploads,
  MAX_OUTLINE_BYTES,
  MAX_UPLOADS,
  readOutline,
  readUploadFile,
  repeatFailed,
  startUpload,
  stopUpload,
  type Upload,
} from '../../db/uploads/uploads.ts';
import { REQUESTED_TYPES, type StopReason } from '../../db/words.ts';
import { startUpload as startWorkflow } from '../../workflows/starts.ts';
import { cellsOf } from '../files/result-rows.ts';
import { CallFailed, callApi } from '../http/call-api.ts';
import { sendFile } from '../http/file.ts';
import { problem } from '../problems.ts';
import { type CheckDeps, factsOf } from '../routes/check.ts';
import type { Starter } from '../temporal.ts';
import { offerOf } from './again.ts';
import { checkAll, choicesOf, summaryOf } from './check.ts';
import type { FilePool } from './file-pool.ts';
import type { Inspection, InspectTask, UploadedFile } from './file-reader.ts';
import { shownName } from './name.ts';
import { Filling, npisWithFacts } from './outline.ts';
import { page } from './page.ts';
import type { Credits } from './pages.ts';
import { factCells } from './people.ts';
import { remainingTime } from './remaining.ts';
import { fieldsOf } from './session.ts';

// Uploads: a visitor chooses a file, checks its draft, and starts it. A workflow submits its
// NPIs, and the visitor downloads the file with the results.

declare module '@hapi/hapi' {
  interface RequestApplicationState {
    /** The owner of the session's key. Set only for pages that do not call the API. */
    caller: Request['auth']['credentials'];
  }
}

export interface UploadPagesDeps extends CheckDeps {
  readonly starter: Starter;
  readonly files: FilePool;
  /** True if workers can send emails. */
  readonly sendsMail: boolean;
}

export const UPLOADS = '/console/uploads';
export const UPLOAD = `${UPLOADS}/{upload_id}`;
/** The number of unusable rows that a draft shows. The result has all of them. */
const MAX_SHOWN = 50;

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
    create: (request, h) => create(deps, request, h),
    show: async (request, h) => {
      const upload = await requireUpload(db, request);
      if (upload.startedAt === null) {
        return await draftPage(deps, request, h, upload);
      }
      return await progressPage(deps, request, h, upload);
    },
    start: (request, h) => start(deps, request, h),
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

type Toolkit = Parameters<Lifecycle.Method>[1];

function idOf(request: Request) {
  const { organizationId } = request.app.caller;
  return { organizationId, uploadId: String(request.params.upload_id) };
}

function pathOf({ id }: Pick<Upload, 'id'>): string {
  return `${UPLOADS}/${id}`;
}

/** Stores the file of the form as a draft. */
async function create(
  deps: UploadPagesDeps,
  request: Request,
  h: Toolkit,
): Promise<ResponseObject> {
  const received = await receive(deps.files, request);
  if (typeof received === 'string') {
    return await listPage(deps, request, h, received);
  }
  const { organizationId, keyId: apiKeyId } = request.app.caller;
  const file = { ...received, content: Buffer.from(received.content) };
  const outcome = await request.app.place.inTurn(() =>
    createUpload(deps.db, { organizationId, apiKeyId }, file),
  );
  switch (outcome.kind) {
    case 'created':
      return h.redirect(pathOf({ id: outcome.uploadId })).code(303);
    case 'closed':
      throw problem('api_key_revoked');
    case 'full': {
      const full = `You have ${MAX_UPLOADS} uploads. Delete one of them first.`;
      return await listPage(deps, request, h, full);
    }
    default:
      return outcome satisfies never;
  }
}

/** Returns the file of the form, or a sentence that says why it can't be used. */
async function receive(
  files: FilePool,
  request: Request,
): Promise<UploadedFile | string> {
  const { customerId } = request.app.caller;
  const { req } = request.raw;
  const body = await files.bodyOf(customerId, req, request.payload as Readable);
  const contentType = String(request.headers['content-type']);
  return await inTurn(files, request, () => files.receive({ body, contentType }));
}

/** Works on a file in the turn of its customer, if the visitor is still there. */
async function inTurn<T>(files: FilePool, request: Request, work: () => Promise<T>) {
  return await files.turns.inTurn(request.app.caller.customerId, async () => {
    if (request.raw.res.destroyed) {
      throw new CallFailed(400, { detail: 'disconnected' });
    }
    return await work();
  });
}

/** Reads the file of a draft. */
async function inspectStored(
  { db, files }: UploadPagesDeps,
  request: Request,
  upload: Upload,
  chosen: Omit<InspectTask, 'file'>,
): Promise<Inspection> {
  return await inTurn(files, request, async () => {
    const file = await storedFile(db, request, upload);
    return await files.inspect({ file, ...chosen });
  });
}

/** Starts a draft with the column and the type of the form. Starting it again changes nothing. */
async function start(
  deps: UploadPagesDeps,
  request: Request,
  h: Toolkit,
): Promise<ResponseObject> {
  const { db, files } = deps;
  const upload = await requireUpload(db, request);
  if (upload.startedAt !== null) {
    return h.redirect(pathOf(upload)).code(303);
  }
  const form = fieldsOf(request);
  const requestedType = REQUESTED_TYPES.find((type) => type === form.type) ?? 'any';
  const prepared = await inTurn(files, request, async () => {
    const file = await storedFile(db, request, upload);
    const sheet = form.sheet ? String(form.sheet) : null;
    return await files.prepare({ file, column: Number(form.column), sheet });
  });
  // The page of the draft says what is wrong with it.
  if (!prepared) return h.redirect(pathOf(upload)).code(303);
  if (prepared.outline.length > MAX_OUTLINE_BYTES) {
    const detail = `${upload.fileName} is too complex. Split it into smaller files.`;
    throw new CallFailed(422, { detail });
  }
  const fileName = shownName(String(form.name ?? '')) || upload.fileName;
  const notifyEmail = asksForAddress(deps, request) ? addressIn(form.notify) : null;
  const chosen = { ...prepared, requestedType, fileName, notifyEmail };
  const isStarted = await request.app.place.inTurn(() =>
    startUpload(db, idOf(request), chosen),
  );
  if (isStarted) await startSubmitting(deps, request);
  return h.redirect(pathOf(upload)).code(303);
}

/** One address, without a display name. The table has the same rule. */
const ADDRESS = /^[a-zA-Z0-9.!#$%&*+/=?^_{|}~-]+@[a-zA-Z0-9.-]+$/;
const MAX_ADDRESS = 254;

/** Returns whether a draft asks for an address. A sandbox is free, so it could flood one. */
function asksForAddress({ sendsMail }: UploadPagesDeps, request: Request): boolean {
  return sendsMail && !isSandbox(request.app.caller.organizationId);
}

/**
 * Returns the address of the form, or null if the field is empty.
 * @throws {CallFailed} 422 if it is not one address
 */
function addressIn(field: unknown): string | null {
  const text = String(field ?? '').trim();
  if (text === '') return null;
  if (text.length <= MAX_ADDRESS && ADDRESS.test(text)) return text;
  const detail =
    'This is not one email address. Go back and correct it, or leave it empty.';
  throw new CallFailed(422, { detail });
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

async function progressPage(
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
async function requireUpload(db: Database, request: Request): Promise<Upload> {
  const id = idOf(request);
  // PostgreSQL rejects some texts, such as those with a NUL.
  const upload = isId('upl', id.uploadId) ? await findUpload(db, id) : null;
  if (!upload) throw noUpload();
  return upload;
}

function noUpload(): CallFailed {
  const detail = 'There is no upload with this id. Uploads are deleted after seven days.';
  return new CallFailed(404, { detail });
}

/** @throws {CallFailed} 404 if the upload was deleted in the meantime */
async function storedFile(
  db: Database,
  request: Request,
  { fileName }: Upload,
): Promise<UploadedFile> {
  const content = await readUploadFile(db, idOf(request));
  if (!content) throw noUpload();
  return { fileName, content };
}

const NOTHING_FOUND = { found: 0, credits: 0 };

/** Shows all uploads, and a problem of the file that the visitor chose. */
async function listPage(
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

/** Returns the name of a column. If it has none, or shares it, its number is added. */
function columnName(header: readonly string[], name: string, index: number): string {
  if (name.trim() === '') return `Column ${index + 1}`;
  const isShared = header.filter((other) => other === name).length > 1;
  return isShared ? `${name} (column ${index + 1})` : name;
}

async function draftPage(
  deps: UploadPagesDeps,
  request: Request,
  h: Toolkit,
  upload: Upload,
): Promise<ResponseObject> {
  const wanted = request.query as Partial<Record<'column' | 'sheet', string>>;
  const column = wanted.column ? Number(wanted.column) : null;
  const sheet = wanted.sheet ? String(wanted.sheet) : null;
  const draft = await inspectStored(deps, request, upload, { column, sheet });
  if (draft.kind === 'unusable') {
    throw new CallFailed(422, { detail: draft.problem });
  }
  const credits = await callApi<Credits>(request, '/api/v1/credits');
  const { npis, unusable, header, empty } = draft;
  const { totals, prices } = await checkAll(deps, request, npis);
  const { organizationId } = request.app.caller;
  const first = draft.preview.flatMap(({ npi }) => npi ?? []);
  const facts = await factsOf(deps.db, organizationId, first);
  const columns = header.map((name, index) => ({
    index,
    name: columnName(header, name, index),
    isChosen: index === draft.column,
  }));
  return page(request, h, 'draft', {
    ...draft,
    ...listedUpload(upload),
    title: upload.fileName,
    columns,
    sheets: draft.sheets.map((name) => ({ name, isChosen: name === draft.sheet })),
    hasSheets: draft.sheets.length > 1,
    isOpen: draft.column === null,
    shownColumns: draft.preview[0]?.cells.map((_, index) =>
      columnName(header, header[index] ?? '', index),
    ),
    preview: draft.preview.map(({ cells, npi }) => {
      return { cells, facts: facts.get(npi ?? '') };
    }),
    showsPeople: facts.size > 0,
    count: npis.length,
    unusable: unusable.slice(0, MAX_SHOWN),
    unusableCount: unusable.length,
    isCut: unusable.length > MAX_SHOWN,
    summary: summaryOf({
      ...totals,
      not_an_npi: unusable.length - empty,
      duplicate: draft.duplicates,
      kept: draft.kept,
      empty,
    }),
    choices: choicesOf(prices, credits.body.balance),
    sendsMail: asksForAddress(deps, request),
  });
}

/** Starts the workflow of an upload. If Temporal is down, the sweep starts it later. */
async function startSubmitting(
  { starter }: UploadPagesDeps,
  request: Request,
  running?: 'TERMINATE_EXISTING',
): Promise<void> {
  const upload = idOf(request);
  await starter.start((...temporal) => startWorkflow(...temporal, upload, running));
}

function listedUpload(upload: Upload) {
  const { startedAt, stopReason, final, total } = upload;
  let status = 'in-progress';
  if (startedAt === null) status = 'draft';
  else if (stopReason !== null) status = 'stopped';
  else if (final === total) status = 'completed';
  return { ...upload, status };
}
