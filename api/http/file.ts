import { once } from 'node:events';
import { PassThrough } from 'node:stream';
import type { Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { problem } from '../problems.ts';
import { whenOver } from './overload.ts';
import type { Place } from './turn-queue.ts';

// Long files are sent while they are read, so a file of any size needs little memory. A client that
// reads slowly slows the reading down, and a client that disconnects ends it.

/**
 * The time in which a client must read a file: 12 MB need 1.6 Mbit/s. A slow client keeps a
 * connection to PostgreSQL only for this time.
 */
const FILE_MS = 60_000;

/** Sends a part of a file. Waits while the client reads more slowly than the file is read. */
export type Send = (text: string) => Promise<void>;

/**
 * Responds with a CSV file that `read` sends in parts. An error before the first part is a usual
 * error response. A later error ends the connection, so that a client cannot take a part
 * for the whole file.
 * @param name the parameter `filename` or `filename*` of the header `Content-Disposition`
 * @param withinMs the time after which the connection of a slow client is closed
 * @throws {ApiError} 429 if the customer has a file in progress, or if too many customers have; any
 * error of `read`
 */
export async function sendFile(
  request: Request,
  h: ResponseToolkit,
  name: string,
  read: (send: Send) => Promise<void>,
  withinMs = FILE_MS,
): Promise<ResponseObject> {
  const place = enter(request);
  const file = new PassThrough();
  const gone = new AbortController();
  const timer = setTimeout(() => request.raw.res.destroy(), withinMs);
  const over = new Promise<void>((resolve) => whenOver(request, resolve)).then(() => {
    clearTimeout(timer);
    gone.abort();
  });
  const { promise: begun, resolve: begin } = Promise.withResolvers<void>();
  const reading = read(async (text) => {
    gone.signal.throwIfAborted();
    begin();
    if (!file.write(text)) {
      await once(file, 'drain', { signal: gone.signal });
    }
  });
  // Reading ends a little after its client has disconnected. It has its place until then, so that a
  // client that disconnects again and again does not get more places.
  void Promise.allSettled([reading, over]).then(() => place.leave());
  await Promise.race([begun, reading]);
  reading.then(
    () => file.end(),
    (error) => file.destroy(error),
  );
  return h
    .response(file)
    .type('text/csv')
    .header('content-disposition', `attachment; ${name}`);
}

/** @throws {ApiError} as `sendFile` */
function enter({ server, auth, app }: Request): Place {
  const { customerId } = app.caller ?? auth.credentials;
  try {
    return server.app.queues.files.enter(customerId);
  } catch {
    throw problem('too_many_files', { wait: 5 });
  }
}
