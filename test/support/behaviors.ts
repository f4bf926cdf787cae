import type { ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import type { Behavior } from './receiver.ts';

// Misbehaviors of receivers, apart from statuses.

/** A behavior that needs only the response. */
type ResponseBehavior = (response: ServerResponse) => void;

const DRIP_MS = 20;
const MIB = 1024 * 1024;
const FLOOD_MIB = 100;

/** Never responds and never closes the connection. */
export const silence: ResponseBehavior = () => {};

/** Closes the connection with a TCP reset, without a response. */
export const reset: Behavior = (_response, tcp) => {
  tcp.resetAndDestroy();
};

/** Closes the connection in good order, without a response. */
export const hangUp: ResponseBehavior = (response) => {
  response.socket?.end();
};

/** Sends a header line every few milliseconds, without an end. */
export const headerDrip: ResponseBehavior = (response) => {
  response.socket?.write('HTTP/1.1 200 OK\r\n');
  drip(response, () => response.socket?.write('x: 1\r\n'));
};

/** Sends a response whose body never ends and arrives byte by byte. */
export const bodyDrip: ResponseBehavior = (response) => {
  response.writeHead(200);
  drip(response, () => response.write('.'));
};

/** Sends 100 MB, as fast as the client reads them. */
export const flood: ResponseBehavior = (response) => {
  response.writeHead(200, { 'content-length': FLOOD_MIB * MIB });
  const chunk = Buffer.alloc(MIB);
  let left = FLOOD_MIB;
  const send = () => {
    while (left > 0 && !response.destroyed) {
      left -= 1;
      if (!response.write(chunk)) {
        response.once('drain', send);
        return;
      }
    }
    response.end();
  };
  send();
};

/** Sends 100 MB that gzip has compressed to 100 KB, although the client did not ask for it. */
export const gzipBomb: ResponseBehavior = (response) => {
  response
    .writeHead(200, { 'content-encoding': 'gzip' })
    .end(gzipSync(Buffer.alloc(FLOOD_MIB * MIB)));
};

function drip(response: ServerResponse, send: () => void): void {
  const timer = setInterval(send, DRIP_MS);
  response.once('close', () => clearInterval(timer));
}
