import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import { run } from './command.ts';
import { LocalProblem } from './problem.ts';

export interface ServerUser {
  readonly uid: number;
  readonly gid: number;
}

const NAME = 'postgres';

/**
 * PostgreSQL refuses to run as root: then it runs as the user `postgres`, which is made where it is missing.
 * @returns undefined for everyone else, who run it as themselves
 * @throws {LocalProblem} `postgres_failed` when the user can be neither found nor made
 */
export async function serverUser(): Promise<ServerUser | undefined> {
  if (process.getuid?.() !== 0) return undefined;
  const present = await findUser();
  if (present !== undefined) return present;
  await run('groupadd', ['--force', '--system', NAME], {});
  await run('useradd', ['--system', '--gid', NAME, '--no-create-home', NAME], {});
  const made = await findUser();
  if (made !== undefined) return made;
  throw new LocalProblem(
    'postgres_failed',
    `PostgreSQL does not run as root and the user ${NAME} could not be made: run this as another user, or make that one.`,
  );
}

async function findUser(): Promise<ServerUser | undefined> {
  const [uid, gid] = await Promise.all([run('id', ['-u', NAME], {}), run('id', ['-g', NAME], {})]);
  if (uid.code !== 0 || gid.code !== 0) return undefined;
  return { uid: Number(uid.output), gid: Number(gid.output) };
}

/** Whether `user` can enter the folder: each of the folders above lets it through. */
export async function isReachable(folder: string, user: ServerUser | undefined): Promise<boolean> {
  if (user === undefined) return true;
  const { uid, gid, mode } = await stat(folder);
  const enter = uid === user.uid ? 0o100 : gid === user.gid ? 0o010 : 0o001;
  if ((mode & enter) === 0) return false;
  const parent = dirname(folder);
  return parent === folder || (await isReachable(parent, user));
}
