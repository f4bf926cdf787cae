import type { Readable } from 'node:stream';
import type { Lifecycle, Request, ResponseObject } from '@hapi/hapi';
import { isSandbox } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import {
  createUpload,
  MAX_OUTLINE_BYTES,
  MAX_UPLOADS,
  readUploadFile,
  startUpload,
  type Upload,
} from '../../db/uploads/uploads.ts';
import { REQUESTED_TYPES } from '../../db/words.ts';
import { CallFailed, callApi } from '../http/call-api.ts';
import { problem } from '../problems.ts';
import { type CheckDeps, factsOf } from '../routes/check.ts';
import { checkAll, choicesOf, summaryOf } from './check.ts';
import type { FilePool } from './file-pool.ts';
import type { Inspection, InspectTask, UploadedFile } from './file-reader.ts';
import { shownName } from './name.ts';
import { page } from './page.ts';
import type { Credits } from './pages.ts';
import { fieldsOf } from './session.ts';
import {
  idOf,
  listedUpload,
  listPage,
  noUpload,
  pathOf,
  progressPage,
  requireUpload,
  startSubmitting,
  type Toolkit,
  type UploadPagesDeps,
} from './uploads.ts';

// Drafts: the files that a visitor has uploaded and not started. The page of a draft shows what we
// read from the file, and its form chooses a column and a type of email.

export interface DraftPagesDeps extends UploadPagesDeps, CheckDeps {
  readonly files: FilePool;
  /** True if workers can send emails. */
  readonly sendsMail: boolean;
}

/** The number of unusable rows that a draft shows. The result has all of them. */
const MAX_SHOWN = 50;

/** Returns the handlers of the pages of drafts. An upload that was started shows its progress. */
export function draftHandlers(deps: DraftPagesDeps) {
  return {
    create: (request, h) => create(deps, request, h),
    show: async (request, h) => {
      const upload = await requireUpload(deps.db, request);
      if (upload.startedAt === null) {
        return await draftPage(deps, request, h, upload);
      }
      return await progressPage(deps, request, h, upload);
    },
    start: (request, h) => start(deps, request, h),
  } satisfies Record<string, Lifecycle.Method>;
}

/** Stores the file of the form as a draft. */
async function create(
  deps: DraftPagesDeps,
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

async function draftPage(
  deps: DraftPagesDeps,
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
  const shownNpis = draft.preview.flatMap(({ npi }) => npi ?? []);
  const facts = await factsOf(deps.db, organizationId, shownNpis);
  const [firstRow] = draft.preview;
  const summary = summaryOf({
    ...totals,
    not_an_npi: unusable.length - empty,
    duplicate: draft.duplicates,
    kept: draft.kept,
    empty,
  });
  return page(request, h, 'draft', {
    ...draft,
    ...listedUpload(upload),
    title: upload.fileName,
    columns: header.map((_, index) => ({
      index,
      name: columnName(header, index),
      isChosen: index === draft.column,
    })),
    sheets: draft.sheets.map((name) => ({ name, isChosen: name === draft.sheet })),
    hasSheets: draft.sheets.length > 1,
    isOpen: draft.column === null,
    shownColumns: firstRow?.cells.map((_, index) => columnName(header, index)),
    preview: draft.preview.map(({ cells, npi }) => {
      return { cells, facts: facts.get(npi ?? '') };
    }),
    showsPeople: facts.size > 0,
    count: npis.length,
    unusable: unusable.slice(0, MAX_SHOWN),
    unusableCount: unusable.length,
    isCut: unusable.length > MAX_SHOWN,
    summary,
    choices: choicesOf(prices, credits.body.balance),
    sendsMail: asksForAddress(deps, request),
  });
}

/** Returns the name of a column. If it has none, or shares it, its number is added. */
function columnName(header: readonly string[], index: number): string {
  const name = header[index] ?? '';
  if (name.trim() === '') return `Column ${index + 1}`;
  const isShared = header.filter((other) => other === name).length > 1;
  return isShared ? `${name} (column ${index + 1})` : name;
}

/** Reads the file of a draft. */
async function inspectStored(
  { db, files }: DraftPagesDeps,
  request: Request,
  upload: Upload,
  chosen: Omit<InspectTask, 'file'>,
): Promise<Inspection> {
  return await inTurn(files, request, async () => {
    const file = await storedFile(db, request, upload);
    return await files.inspect({ file, ...chosen });
  });
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

/** Starts a draft with the column and the type of the form. Starting it again changes nothing. */
async function start(
  deps: DraftPagesDeps,
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
function asksForAddress({ sendsMail }: DraftPagesDeps, request: Request): boolean {
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
