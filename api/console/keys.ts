import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { type ApiKey, type IssuedKey, KEY_OVERLAP_MS } from '../../db/accounts/keys.ts';
import {
  createManagedKey,
  type KeyFault,
  KeyRefused,
  listManagedKeys,
  renameManagedKey,
  revokeManagedKey,
  rotateManagedKey,
} from '../../db/accounts/managed-keys.ts';
import { isSandbox } from '../../db/accounts/organizations.ts';
import { endSession, openSession } from '../../db/accounts/sessions.ts';
import type { Database } from '../../db/connection/client.ts';
import { isId, newId } from '../../db/connection/ids.ts';
import { KEY_ROLES } from '../../db/words.ts';
import { CallFailed } from '../http/call-api.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { problem } from '../problems.ts';
import FAULTS from './key-faults.json' with { type: 'json' };
import { page } from './page.ts';
import { fieldsOf, SESSION_COOKIE, SIGN_IN, sessionOf } from './session.ts';

// The pages on which a visitor with a `full` key manages the keys of the organization
// (api/docs/console.md, Keys).

export const KEYS = '/console/keys';
export const KEY = `${KEYS}/{key_id}`;

/** A name has 1 to 200 characters, without control characters. */
const NAME = /^\P{Cc}{1,200}$/u;
const NAME_PROBLEM = 'Enter a name of 1 to 200 characters, and choose a role.';

type Form = ReturnType<typeof fieldsOf>;

/** Returns the handlers of these pages. */
export function keyHandlers(db: Database) {
  return {
    list: (request, h) => listPage(db, request, h, {}),
    create: (request, h) => create(db, request, h),
    show: (request, h) => keyPage(db, request, h, {}),
    rename: (request, h) => rename(db, request, h),
    rotate: (request, h) => rotate(db, request, h),
    revoke: (request, h) => revoke(db, request, h),
  } satisfies Record<string, Lifecycle.Method>;
}

async function listPage(
  db: Database,
  request: Request,
  h: ResponseToolkit,
  form: Form,
): Promise<ResponseObject> {
  const { caller } = request.app;
  const found = await readInTurn(request, () => listManagedKeys(db, caller));
  const keys = found.map((key) => shownKey(request, key));
  const { role = 'member' } = form;
  return page(request, h, 'keys', {
    title: 'Keys',
    active: keys.filter(({ isActive }) => isActive),
    ended: keys.filter(({ isActive }) => !isActive),
    form: { keyId: newId('key'), ...form },
    is: { [String(role)]: true },
    canMakeLive: !isSandbox(caller.organizationId),
  }).code(form.problem === undefined ? 200 : 422);
}

async function create(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const form = fieldsOf(request);
  const id = newKeyId(form);
  const name = nameOf(form);
  const role = KEY_ROLES.find((known) => known === form.role);
  if (name === null || role === undefined) {
    const isTest = form.kind === 'test';
    const given = { name: form.name, role: form.role, isTest };
    return await listPage(db, request, h, { ...given, problem: NAME_PROBLEM });
  }
  const isTest = form.kind === 'test' || isSandbox(request.app.caller.organizationId);
  const issued = await changing(request, () =>
    createManagedKey(db, request.app.caller, { id, name, role, isTest }),
  );
  return page(request, h, 'new-key', { title: 'New key', ...issued });
}

async function keyPage(
  db: Database,
  request: Request,
  h: ResponseToolkit,
  form: Form,
): Promise<ResponseObject> {
  const id = keyIdOf(request);
  const all = await readInTurn(request, () => listManagedKeys(db, request.app.caller));
  const key = all.find((one) => one.id === id);
  if (!key) throw refusal('missing');
  const shown = shownKey(request, key);
  return page(request, h, 'key', {
    ...shown,
    ending: shown.status === 'active' ? all.filter((old) => endsFor(old, key)) : [],
    title: key.name,
    canRotate: shown.isActive && key.expiresAt === null,
    form: { keyId: newId('key'), name: key.name, ...form },
  }).code(form.problem === undefined ? 200 : 422);
}

async function rename(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const form = fieldsOf(request);
  const name = nameOf(form);
  if (name === null) {
    const given = { name: form.name, problem: 'Enter a name of 1 to 200 characters.' };
    return await keyPage(db, request, h, given);
  }
  const keyId = keyIdOf(request);
  await changing(request, () => renameManagedKey(db, request.app.caller, keyId, name));
  return h.redirect(`${KEYS}/${keyId}`).code(303);
}

/** Replaces a key. A visitor who replaces the own key goes on with the new one. */
async function rotate(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { caller } = request.app;
  const form = fieldsOf(request);
  const keyId = keyIdOf(request);
  const isAtOnce = form.old === 'end';
  const rotation = { newKeyId: newKeyId(form), overlapMs: isAtOnce ? 0 : KEY_OVERLAP_MS };
  const issued = await changing(request, () =>
    rotateManagedKey(db, caller, keyId, rotation),
  );
  const isOwn = keyId === caller.keyId;
  const context = { title: 'New key', isRotated: true, isAtOnce, isOwn, ...issued };
  const shown = page(request, h, 'new-key', context);
  if (isOwn) await changeSession(db, request, shown, issued);
  return shown;
}

async function changeSession(
  db: Database,
  request: Request,
  shown: ResponseObject,
  { id }: IssuedKey,
): Promise<void> {
  const session = await openSession(db, id);
  await endSession(db, sessionOf(request));
  shown.state(SESSION_COOKIE, session);
}

/** Revokes a key. A visitor who revokes the own key is signed out. */
async function revoke(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { caller } = request.app;
  const keyId = keyIdOf(request);
  const isLeaked = fieldsOf(request).leaked !== undefined;
  await changing(request, () => revokeManagedKey(db, caller, keyId, isLeaked));
  if (keyId !== caller.keyId) return h.redirect(KEYS).code(303);
  await endSession(db, sessionOf(request));
  return h.redirect(SIGN_IN).code(303).unstate(SESSION_COOKIE);
}

/** Makes a change in the turn of the organization. @throws {CallFailed} if it is refused */
async function changing<T>(request: Request, work: () => Promise<T>): Promise<T> {
  try {
    return await request.app.place.inTurn(work);
  } catch (error) {
    throw error instanceof KeyRefused ? refusal(error.fault) : error;
  }
}

function refusal(fault: KeyFault): Error {
  if (fault === 'ended') return problem('api_key_revoked');
  const [status, detail] = FAULTS[fault] as [number, string];
  return new CallFailed(status, { detail });
}

/** Returns the id in the path. PostgreSQL rejects some texts, such as those with a NUL. */
function keyIdOf(request: Request): string {
  return requireKeyId(request.params.key_id);
}

/** Returns the id that a form chose for its new key. */
function newKeyId({ key_id }: Form): string {
  return requireKeyId(key_id);
}

function requireKeyId(given: unknown): string {
  const id = String(given);
  if (!isId('key', id)) throw refusal('missing');
  return id;
}

function nameOf(form: Form): string | null {
  const name = String(form.name ?? '').trim();
  return NAME.test(name) ? name : null;
}

interface ListedKey extends ApiKey {
  readonly lastUsedAt: Date | null;
}

/** Returns the word for the state of a key. A key that ends later is not valid for long. */
function stateOf({ state, expiresAt }: ApiKey): string {
  if (state === 'inactive') return 'ended';
  return state === 'active' && expiresAt !== null ? 'ending' : state;
}

/** Returns whether a key ends soon, because another one has probably replaced it. */
function endsFor(old: ApiKey, { name, organizationId }: ApiKey): boolean {
  const isSame = old.name === name && old.organizationId === organizationId;
  return isSame && stateOf(old) === 'ending';
}

/** Returns what a page shows of a key. */
function shownKey(request: Request, key: ListedKey) {
  return {
    ...key,
    isActive: key.state === 'active',
    status: stateOf(key),
    endsAt: key.revokedAt ?? key.expiresAt,
    isOwn: key.id === request.app.caller.keyId,
  };
}
