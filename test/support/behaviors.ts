import type { ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import type { Behavior } from './receiver.ts';

// How receivers misbehave, beside a status.

/** One that needs the answer alone. */
type Answering = (response: ServerResponse) => void;

const DRIP_MS = 20;
const MIB = 1024 * 1024;
const FLOOD_MIB = 100;

/** Never answers, never closes. */
export const silence: Answering = () => {};

/** Closes the connection without an answer, by a TCP reset. */
export const reset: Behavior = (_response, tcp) => {
  tcp.resetAndDestroy();
};

/** Closes the connection without an answer, in good order. */
export const hangUp: Answering = (response) => {
  response.socket?.end();
};

/** A header line every few milliseconds, without an end. */
export const headerDrip: Answering = (response) => {
  response.socket?.write('HTTP/1.1 200 OK\r\n');
  drip(response, () => response.socket?.write('x: 1\r\n'));
};

/** An answer whose body never ends and comes byte by byte. */
export const bodyDrip: Answering = (response) => {
  response.writeHead(200);
  drip(response, () => response.write('.'));
};

/** 100 MB, as fast as they are taken. */
export const flood: Answering = (response) => {
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

/** 100 MB packed into 100 KB by gzip, unasked. */
export const gzipBomb: Answering = (response) => {
  response.writeHead(200, { 'content-encoding': 'gzip' }).end(gzipSync(Buffer.alloc(FLOOD_MIB * MIB)));
};

function drip(response: ServerResponse, send: () => void): void {
  const timer = setInterval(send, DRIP_MS);
  response.once('close', () => clearInterval(timer));
}
